// ExpertSplitTargetConfig: the parsed, validated, ordered list of targets.
//
// The grammar (docs/targets.md):
//   list     = item *("," item)                     blanks around items are ignored
//   item     = target ["=" capacity]
//   target   = "cpu" | KIND ":" INDEX | "cpu:" NODE | "worker(" target ")"
//            | "rpc:" HOST ":" PORT ["/" INDEX] | "unix:" PATH
//   capacity = "auto" | SIZE | PERCENT "%"
//
// An immutable value that knows no ggml and no device: a known kind that this machine lacks parses
// as well as any other. Any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/result.h"
#include "moe/target/ids.h"

namespace moe {

// What runs a device. Printed in lower case; "rocm" parses as kHip and prints as "hip".
enum class BackendKind { kCuda, kHip, kVulkan, kMetal, kSycl, kCann, kOpencl };

std::string_view BackendKindName(BackendKind kind);
// Nullopt for an unknown word; the lower-case names and "rocm" are known.
std::optional<BackendKind> ParseBackendKind(std::string_view word);
// Every kind, in the order in which error messages list them.
std::span<const BackendKind> AllBackendKinds();

// Where a target's units live and who computes them.
enum class TargetPlace {
  kCpu,     // this process, the mapped file or host memory: "cpu"
  kNuma,    // one NUMA node's memory and cores: "cpu:0"
  kDevice,  // a ggml device of this process: "cuda:0"
  kRpc,     // a device behind a ggml RPC server: "rpc:10.0.0.7:50052/0"
  kWorker,  // a child process that hosts `worker_place`: "worker(vulkan:0)"
  kUnix,    // a worker that somebody else started: "unix:/run/w.sock"
};

enum class CapacityPolicy {
  kAuto,     // what is free after everything else; unbounded for mapped CPU units
  kBytes,    // a fixed number of bytes
  kPercent,  // of the model's unit bytes
};

struct TargetCapacity {
  CapacityPolicy policy = CapacityPolicy::kAuto;
  base::Bytes bytes;             // kBytes
  std::uint64_t percent_e6 = 0;  // kPercent: millionths of a percent, 0 to 100'000'000

  friend bool operator==(const TargetCapacity&, const TargetCapacity&) = default;
};

struct ExpertSplitTarget {
  TargetPlace place = TargetPlace::kCpu;
  // What a kWorker hosts: kCpu, kNuma, kDevice or kRpc. Equal to `place` for every other target.
  TargetPlace inner_place = TargetPlace::kCpu;
  // The fields below describe the target itself or, for a kWorker, what it hosts.
  BackendKind kind = BackendKind::kCuda;  // kDevice
  std::uint32_t index = 0;                // kDevice, kRpc: device index; kNuma: node
  std::string host;                       // kRpc
  std::uint16_t port = 0;                 // kRpc
  std::string path;                       // kUnix: absolute
  TargetCapacity capacity;
  // Canonical name without capacity, unique in its list: "hip:0", "worker(cpu)#2".
  std::string name;

  // Units computed by this process's CPU threads (kCpu, kNuma).
  bool in_process_cpu() const { return place == TargetPlace::kCpu || place == TargetPlace::kNuma; }
  // May be the primary: everything but worker, unix and rpc.
  bool can_be_primary() const { return in_process_cpu() || place == TargetPlace::kDevice; }

  friend bool operator==(const ExpertSplitTarget&, const ExpertSplitTarget&) = default;
};

class ExpertSplitTargetConfig {
 public:
  // Errors: kInvalidInput for each fault of the text (empty list or item, unknown kind, bad index,
  // host, port, path or size, duplicate, the same device directly and in a worker without a SIZE on
  // both, cpu beside cpu:N, a list without a possible primary). The message names the item, its
  // position (from 1), the offending text and what is accepted.
  static base::Result<ExpertSplitTargetConfig> Parse(std::string_view list);

  // Canonical text; Parse(Print()) is the same value.
  std::string Print() const;

  std::size_t size() const { return targets_.size(); }  // 1 to 255
  std::span<const ExpertSplitTarget> targets() const { return targets_; }
  const ExpertSplitTarget& operator[](TargetId id) const { return targets_[id.index()]; }
  // The first target that is neither worker, unix nor rpc; runs the dense part.
  TargetId primary() const { return primary_; }

  friend bool operator==(const ExpertSplitTargetConfig&, const ExpertSplitTargetConfig&) = default;

 private:
  ExpertSplitTargetConfig() = default;

  std::vector<ExpertSplitTarget> targets_;
  TargetId primary_;
};

// SIZE of the grammar: a number (decimals allowed) with B, KB, MB, GB, TB, KiB, MiB, GiB, TiB in
// any case, or plain bytes. Errors: kInvalidInput, for "20G" with a hint of "20GiB" and "20GB".
base::Result<base::Bytes> ParseSize(std::string_view text);

}  // namespace moe
