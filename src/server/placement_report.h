// What the server knows of a placement: plain values that the composition root fills in.
//
// The server itself has no notion of targets or plans; it shows these.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace server {

// One target, in list order. Counters run since the model was loaded.
struct TargetReport {
  std::string name;
  std::size_t units = 0;
  std::uint64_t bytes = 0;                // of its units
  std::optional<std::uint64_t> capacity;  // bytes; absent: unbounded
  double expected_share = 0;              // of the traffic, by the plan; 0 to 1
  std::uint64_t rows = 0;                 // (row, slot) pairs computed
  double share = 0;                       // of all rows, 0 to 1
  double busy_seconds = 0;
  double wait_seconds = 0;
  std::uint64_t failures = 0;
  std::string lost;  // why it owns nothing at present; empty when all is well
};

// Experts that move while the server runs. Counters run since then.
struct RebalanceReport {
  std::uint64_t bytes_per_second = 0;  // at most
  std::uint64_t moved_units = 0;
  std::uint64_t moved_bytes = 0;  // loaded for that
  std::uint64_t failures = 0;
};

struct PlacementReport {
  std::string path;         // "single", "hot-cold" or "multi"
  std::string fingerprint;  // 16 hex digits
  std::string summary;      // "a=1|b=2"
  std::size_t units = 0;
  std::size_t num_layers = 0;
  std::size_t num_experts = 0;       // a layer
  std::vector<std::uint8_t> owners;  // [num_layers, num_experts]: index into targets
  std::vector<TargetReport> targets;
  // [num_layers, num_experts]: rows that were routed to each unit; empty where they are not
  // counted.
  std::vector<std::uint64_t> unit_rows;
  std::uint64_t generation = 0;              // how many placements were in force before
  std::optional<RebalanceReport> rebalance;  // absent when experts stay where they are
};

}  // namespace server
