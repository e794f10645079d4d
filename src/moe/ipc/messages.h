// What the frames between this program and a worker say, and how it is written in bytes.
//
// Decode functions accept exactly what Encode writes: every length, count and enumeration is
// checked, and bytes left over are an error. Errors of all of them: kWorkerLost, naming the
// message, the field and what is wrong. Pure; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/result.h"
#include "moe/plan/model_shape.h"

namespace moe::ipc {

inline constexpr std::size_t kMaxTextBytes = 4096;

// What a worker writes for a batch.
enum class ResultForm : std::uint8_t {
  kPairs = 0,  // one unweighted vector per pair that it owns, in (row, slot) order
  kSums = 1,   // one weighted sum per row
};

// Worker, first frame: what it is.
struct Welcome {
  ModelIdentity model;  // of the file that it was started with
  std::string target;   // "cpu", "vulkan:0"
  ResultForm form = ResultForm::kPairs;
  // Of the target's memory; device_id as TargetMemory::device_id.
  base::Bytes memory_free;
  base::Bytes memory_total;
  std::string device_id;
  bool shares_host_ram = false;

  friend bool operator==(const Welcome&, const Welcome&) = default;
};

// Sizes of the shared memory (shared_rows.h); each at least 1.
struct RowsShape {
  std::uint32_t max_rows = 1;  // of one batch
  std::uint32_t num_used = 1;  // slots of a row
  std::uint32_t n_embd = 1;    // floats of a row
  ResultForm form = ResultForm::kPairs;

  friend bool operator==(const RowsShape&, const RowsShape&) = default;
};

// To the worker: own these units instead of those you have. The first one of a connection carries
// the shared memory's descriptor; later ones repeat its shape.
struct LoadOrder {
  ModelIdentity model;
  std::uint64_t plan_fingerprint = 0;
  bool packed = false;            // CPU: compute from weights packed at load, not from the file
  std::uint32_t num_threads = 1;  // CPU: threads to compute with
  RowsShape rows;
  // 1 for units to own: [num_layers * num_experts] of the model, layer major.
  std::vector<std::uint8_t> owned;

  friend bool operator==(const LoadOrder&, const LoadOrder&) = default;
};

struct LoadProgress {
  base::Bytes done;
  base::Bytes total;

  friend bool operator==(const LoadProgress&, const LoadProgress&) = default;
};

struct Ready {
  std::uint64_t plan_fingerprint = 0;  // of the order that is fulfilled
  base::Bytes bytes;                   // of the units that it owns now

  friend bool operator==(const Ready&, const Ready&) = default;
};

struct BatchOrder {
  std::uint64_t number = 0;  // from 1, one up for each batch of the connection
  std::uint32_t layer = 0;
  std::uint32_t num_rows = 0;

  friend bool operator==(const BatchOrder&, const BatchOrder&) = default;
};

struct BatchDone {
  std::uint64_t number = 0;
  std::uint64_t num_pairs = 0;  // that it owns of the batch

  friend bool operator==(const BatchDone&, const BatchDone&) = default;
};

std::vector<std::byte> Encode(const Welcome& message);
std::vector<std::byte> Encode(const LoadOrder& message);
std::vector<std::byte> Encode(const LoadProgress& message);
std::vector<std::byte> Encode(const Ready& message);
std::vector<std::byte> Encode(const BatchOrder& message);
std::vector<std::byte> Encode(const BatchDone& message);
// A failure: kind and message. Longer texts than kMaxTextBytes are cut.
std::vector<std::byte> Encode(const base::Error& failure);

base::Result<Welcome> DecodeWelcome(std::span<const std::byte> payload);
base::Result<LoadOrder> DecodeLoadOrder(std::span<const std::byte> payload);
base::Result<LoadProgress> DecodeLoadProgress(std::span<const std::byte> payload);
base::Result<Ready> DecodeReady(std::span<const std::byte> payload);
base::Result<BatchOrder> DecodeBatchOrder(std::span<const std::byte> payload);
base::Result<BatchDone> DecodeBatchDone(std::span<const std::byte> payload);
// Bytes of the message outside printable ASCII are escaped.
base::Result<base::Error> DecodeFailure(std::span<const std::byte> payload);

}  // namespace moe::ipc
