// Rebalancer: lets the placement follow the traffic while a server runs.
//
// A thread of its own looks at what was routed, chooses exchanges (exchange_policy.h) and has
// PlacementMover make them, at most so many bytes a second. It computes at the lowest priority and
// never holds anything that the thread that computes waits for. That one calls Step between steps.
#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <optional>
#include <stop_token>
#include <thread>

#include "base/bytes.h"
#include "base/log.h"
#include "moe/compute/placement_mover.h"
#include "moe/plan/cost_model.h"
#include "moe/plan/model_shape.h"
#include "moe/profile/routing_recorder.h"
#include "moe/rebalance/exchange_policy.h"
#include "moe/rebalance/traffic_window.h"

namespace moe {

struct RebalancerOptions {
  const ModelShape* shape = nullptr;        // outlives the rebalancer, as do the next two
  const RoutingRecorder* routed = nullptr;  // everything that is routed
  PlacementMover* mover = nullptr;
  std::optional<CostModel> costs;  // absent: the list's order is the preference
  RebalanceRules rules;
  base::Bytes bytes_per_second;           // above 0
  std::chrono::milliseconds period{250};  // between two looks
  base::Log log;
};

// Since the start.
struct RebalanceCounts {
  std::uint64_t exchanges = 0;
  std::uint64_t units = 0;  // that have another owner than before
  base::Bytes bytes;        // that were loaded for it
  std::uint64_t failures = 0;
};

class Rebalancer {
 public:
  // Starts the thread.
  explicit Rebalancer(RebalancerOptions options);
  // Ends what is in progress; units on their way to a device stay on a CPU.
  ~Rebalancer() = default;
  Rebalancer(const Rebalancer&) = delete;
  Rebalancer& operator=(const Rebalancer&) = delete;

  // As PlacementMover::Step.
  bool Step() { return options_.mover->Step(); }
  // Any thread.
  RebalanceCounts counts() const;
  base::Bytes bytes_per_second() const { return options_.bytes_per_second; }

 private:
  void Run(const std::stop_token& stop);
  // How long to wait before the next look.
  std::chrono::milliseconds Look(const std::stop_token& stop);
  void Fail(const base::Error& error);

  const RebalancerOptions options_;
  TrafficWindow traffic_;        // of the thread
  bool has_complained_ = false;  // likewise
  mutable std::mutex mutex_;
  RebalanceCounts counts_;  // guarded
  std::jthread thread_;     // last: it uses everything above
};

}  // namespace moe
