// MoeExpertCompute: the routed-expert execution contract.
//
// A batch is the routed FFN of one layer for some rows. For row r and slot s with expert
// e = ids[r, s] an expert computes
//
//     y[r, s] = W_down[e] * (silu(W_gate[e] * x[r]) * (W_up[e] * x[r]))
//
// and the layer's output is out[r] = sum over s of weights[r, s] * y[r, s]. An implementation
// computes the pairs (r, s) whose expert its target owns and leaves every other pair alone.
//
// How a batch runs. The caller has a team of threads with a barrier between phases (in the graph:
// one custom node a phase, on the CPU backend's own threads). For each batch, in this order:
//
//     Begin     by thread 0: hands the batch to a device or worker; does not wait
//     Prepare   by every thread: group pairs by expert, convert rows
//     Expand    by every thread: gate, up and SwiGLU
//     Reduce    by every thread: down
//     Finish    by thread 0: waits for what Begin started
//     Combine   by every thread (CombineParts below): weights and adds all parts
//
// An owner that computes elsewhere does nothing in Prepare, Expand and Reduce; one that computes on
// the team's threads does nothing in Begin and Finish. No phase has a barrier inside.
//
// Bit rule. A CPU owner (`cpu`, `cpu:N`, `worker(cpu)`) returns one vector per pair, each computed
// with one order of summation whatever other rows are in the batch and however many threads run.
// Weighting and adding happen in the router's slot order in CombineParts, the same way everywhere.
// A device owner may return one weighted sum per row instead; such sums are added after the
// pairs, in target order.
//
// Ownership: a batch's arrays belong to the caller and stay valid and unchanged from Begin to the
// end of Combine. One batch at a time per object.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/result.h"
#include "moe/target/ids.h"

namespace moe {

struct ExpertBatch {
  LayerId layer{};
  std::size_t num_rows = 0;           // may be 0
  std::size_t num_used = 0;           // slots a row: the router's top-k
  std::size_t n_embd = 0;             // width of a row
  const float* rows = nullptr;        // [num_rows, n_embd], normed hidden rows
  const std::int32_t* ids = nullptr;  // [num_rows, num_used], each 0 to num_experts - 1
  const float* weights = nullptr;     // [num_rows, num_used]
};

// This thread of a team of `count`.
struct TeamThread {
  std::size_t index = 0;
  std::size_t count = 1;
};

enum class PartForm {
  kPairs,  // one unweighted vector per owned pair
  kSums,   // one weighted sum per row
};

// What one owner computed of the batch, valid from Finish to the next Begin.
struct ExpertPart {
  PartForm form = PartForm::kPairs;
  // kPairs: [num_rows, num_used] pointers to n_embd floats each, nullptr for pairs it does not own.
  // May itself be nullptr when it owns no pair of this batch.
  const float* const* pairs = nullptr;
  // kSums: [num_rows, n_embd]; nullptr when it owns no pair of this batch.
  const float* sums = nullptr;
};

struct ExpertTimes {
  // On the team's threads: time that the first of them spends in its phases. Elsewhere: from Begin
  // to the end of Finish, an upper bound of what it computes.
  double busy_ms = 0;
  // In Finish: by how much the owner was slower than everybody else. 0 on the team's threads.
  double wait_ms = 0;
};

class MoeExpertCompute {
 public:
  virtual ~MoeExpertCompute() = default;

  virtual base::Result<void> Begin(const ExpertBatch& batch) = 0;
  virtual void Prepare(TeamThread thread) = 0;
  virtual void Expand(TeamThread thread) = 0;
  virtual void Reduce(TeamThread thread) = 0;
  // Errors: kWorkerLost or kTimeout when the owner is gone, kDeviceFailure when its device failed.
  virtual base::Result<void> Finish() = 0;
  // Precondition: after Finish of this batch (for one that computes on the team: after Reduce).
  virtual ExpertPart part(std::size_t index) const = 0;
  // 1 for a simple owner; for the multi-target object the number of its owners.
  virtual std::size_t num_parts() const = 0;

  // Rows (pairs) computed since the object was made, per part. Of a simple owner from any thread.
  virtual std::uint64_t num_pairs(std::size_t index) const = 0;
  // Since the object was made, from any thread; zero where nobody measures (MeasuredCompute does).
  virtual ExpertTimes times() const { return {}; }
};

// out[r] = the weighted sum of all parts: pairs in slot order, then sums in the order of `parts`.
// Each output element starts at +0; for each pair the product weight * y is rounded to float and
// then added (a multiplication and an addition, never a fused one); each sum is added as it is. So
// the bits do not depend on compiler, instruction set, team size or which owner holds a pair.
// `thread` writes its contiguous share of the elements; `out` is [num_rows, n_embd] and is wholly
// overwritten by the team. A pair that two parts hold is taken from the first of them; a row that
// no part holds anything of becomes zero.
void CombineParts(const ExpertBatch& batch, std::span<const ExpertPart> parts, TeamThread thread,
                  float* out);

}  // namespace moe
