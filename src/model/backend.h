// ModelBackend: what the engine and the commands know of a model family.
//
// A backend holds the weights and, for each of its slots, the request state of one sequence (cache
// rows, recurrent state). It turns rows of tokens into rows of logits. Rows, not requests, are the
// unit of work: one batch may mix tokens of several slots. No ggml types here. One thread at a
// time, and never two calls at once; only RequestStop of the caller's own stop_source may come
// from elsewhere.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/result.h"

namespace model {

// One token of a batch.
struct BatchRow {
  std::int32_t token = 0;  // 0 to vocab_size() - 1
  std::uint32_t slot = 0;  // 0 to num_slots() - 1
  // From 0: the slot's length plus the rows of this slot before this one.
  std::uint32_t position = 0;
  bool wants_logits = false;
};

// What one part of the expert split has computed since the backend was made.
struct ExpertCounter {
  // "primary" for layers in the primary's own graph, or "part N" of the compute object that the
  // other layers share (moe::MoeExpertCompute::part).
  std::string name;
  std::uint64_t num_pairs = 0;  // (row, expert) pairs
};

// What one kind of node of the graph has taken.
struct NodeTime {
  std::string what;  // the operation and the weights or the part of the model that it works on
  std::uint64_t num_nodes = 0;
  double ms = 0;
};

// What a slot held at one length, as far as it is overwritten when the slot goes on: recurrent
// state. What a slot keeps of every token (cache cells) is no part of it. In host memory.
class SlotCheckpoint {
 public:
  virtual ~SlotCheckpoint() = default;

  virtual std::size_t length() const = 0;  // tokens that the slot held
  virtual base::Bytes bytes() const = 0;
};

class ModelBackend {
 public:
  virtual ~ModelBackend() = default;

  virtual std::size_t num_slots() const = 0;
  // Tokens a slot can hold.
  virtual std::size_t context_length() const = 0;
  // The largest batch Evaluate takes.
  virtual std::size_t max_batch_rows() const = 0;
  virtual std::size_t vocab_size() const = 0;
  // Tokens that `slot` holds now; the position its next row must have.
  virtual std::size_t slot_length(std::uint32_t slot) const = 0;

  // Computes `rows` and appends them to their slots. The answer is [rows that want logits in the
  // order of `rows`, vocab_size()], owned by the backend, valid until the next call. A row sees the
  // tokens of its own slot up to itself. Rows of one slot must be in order of position; rows of
  // different slots may interleave. On CPU owners a row's logits do not depend on how tokens are
  // divided into batches or on the other slots' rows.
  // Errors: kInvalidInput for an empty or too large batch, a token, slot or position out of range;
  // the slots are as before. kCancelled when `stop` was requested, kWorkerLost, kTimeout or
  // kDeviceFailure when an owner failed: the batch is abandoned and every slot in it cleared.
  virtual base::Result<std::span<const float>> Evaluate(std::span<const BatchRow> rows,
                                                        std::stop_token stop = {}) = 0;

  // Forgets everything `slot` holds.
  virtual void ClearSlot(std::uint32_t slot) = 0;
  // Makes `to` hold what `from` holds. Errors: kDeviceFailure.
  virtual base::Result<void> CopySlot(std::uint32_t from, std::uint32_t to) = 0;

  // Keeps what `slot` holds now, so that RestoreSlot can go back there. Errors: kCapacity when
  // there is no memory for it.
  virtual base::Result<std::unique_ptr<SlotCheckpoint>> SaveSlot(std::uint32_t slot) = 0;
  // Makes `to`, which may be `from`, hold the first checkpoint.length() tokens that `from` holds.
  // Precondition: the checkpoint was saved from `from`, or from a slot that `from` took those
  // tokens over from, and `from` has held them ever since. What comes after them in `from` does not
  // matter. Errors: kDeviceFailure; `to` is then cleared.
  virtual base::Result<void> RestoreSlot(const SlotCheckpoint& checkpoint, std::uint32_t from,
                                         std::uint32_t to) = 0;

  // Threads of the CPU backend from the next Evaluate on; at least 1.
  virtual void SetThreads(std::size_t count) = 0;

  // Graphs built since the backend was made. Steps of a shape seen lately reuse theirs.
  virtual std::uint64_t graphs_built() const = 0;
  virtual std::vector<ExpertCounter> expert_counters() const = 0;

  // From the next Evaluate on every node is computed and timed by itself, beginning at 0, or no
  // more. Steps are slower meanwhile, and nothing overlaps.
  virtual void TimeNodes(bool on) = 0;
  // Since TimeNodes(true), the longest first. Layers are counted together.
  virtual std::vector<NodeTime> node_times() const = 0;
};

}  // namespace model
