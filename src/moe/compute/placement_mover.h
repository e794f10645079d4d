// PlacementMover: experts that exchange their owners while the model computes.
//
// Exchange runs on a thread of its own and loads beside the steps; Step runs on the thread that
// computes, between two steps, and puts what is loaded in force. A step sees one placement from
// its beginning to its end, and none waits for more than a piece of a unit.
//
// How a pair is exchanged. A CPU takes a unit over as soon as it is packed (or, with mapped
// weights, read): the placement that follows says so. A device has as many places as it was given;
// a unit that leaves it goes to a CPU first, the next placement does without it, and then its
// place is filled with the one that comes, which a third placement gives to the device. So a
// device's weights are written only where nothing reads, and no device needs more memory than it
// has.
//
// A worker gets its new units, and loads those that it has not, just before the placement that
// gives them to it: between two steps, one exchange at a time. Units of remote devices stay where
// they are, and so do layers in the primary's own graph. Bits do not change between CPU owners; a
// device's results are those that it would compute for its units anyway.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <stop_token>
#include <vector>

#include "base/bytes.h"
#include "base/result.h"
#include "moe/compute/failover_compute.h"
#include "moe/plan/hotness.h"
#include "moe/plan/model_shape.h"
#include "moe/target/ids.h"

namespace moe {

class ExpertLoader;  // expert_loader_state.h

// Two experts of a layer, of different owners, that shall have each other's.
struct UnitExchange {
  LayerId layer;
  ExpertId first;
  ExpertId second;

  friend bool operator==(const UnitExchange&, const UnitExchange&) = default;
};

// Whose units can be exchanged.
enum class Movable : std::uint8_t {
  kNo,
  kHere,    // a CPU or device of this process: with any other
  kWorker,  // with one of this process
};

// Who owns what, and what of it can be exchanged.
struct MovableUnits {
  std::vector<std::uint8_t> owners;   // [num_layers, num_experts]
  std::vector<Movable> targets;       // [targets]
  std::vector<LayerId> fixed_layers;  // whose units stay

  // Whether units of the two can be exchanged.
  bool Exchangeable(std::size_t one, std::size_t other) const {
    return one != other && targets[one] != Movable::kNo && targets[other] != Movable::kNo &&
           (targets[one] == Movable::kHere || targets[other] == Movable::kHere);
  }
};

class PlacementMover {
 public:
  // LoadExperts makes it.
  PlacementMover(std::shared_ptr<ExpertLoader> loader, std::shared_ptr<FailoverCompute> compute);
  ~PlacementMover();

  // Any thread.
  MovableUnits units() const;

  // Exchanges the owners of each pair, which must be of movable targets and layers, and waits for
  // Step to put that in force; `hotness` is what the new plans report as expected. Bytes of the
  // units that were loaded, on their way or at last. One call at a time, not on the thread that
  // computes. Errors: kCapacity when a CPU has no memory for them: the plan is as it was;
  // kDeviceFailure, kUnavailable when a worker was lost meanwhile: units that should go to a device
  // may then be on a CPU; kCancelled after `stop`.
  base::Result<base::Bytes> Exchange(std::span<const UnitExchange> exchanges,
                                     std::shared_ptr<const Hotness> hotness,
                                     const std::stop_token& stop);

  // Between two steps, by the thread that computes: copies pieces to devices or puts a placement in
  // force. Does at least one piece, when there is one, and no more once `most` has passed. True
  // when there is more.
  bool Step(std::chrono::microseconds most = std::chrono::milliseconds(1));

 private:
  struct Pending;
  struct Goal {
    LayerId layer;
    ExpertId expert;
    TargetId to;
  };

  // All pairs of this process's owners together, each other pair by itself.
  std::vector<std::vector<Goal>> GoalsOf(std::span<const UnitExchange> exchanges) const;
  // Until all goals are met. Errors: as Exchange.
  base::Result<void> FollowAll(std::span<const Goal> goals,
                               const std::shared_ptr<const Hotness>& hotness,
                               const std::stop_token& stop, base::Bytes& moved);
  // Loads and waits for Step; false when the placement has changed meanwhile.
  base::Result<bool> Follow(std::span<const Goal> goals, bool to_devices,
                            const std::shared_ptr<const Hotness>& hotness,
                            const std::stop_token& stop, base::Bytes& moved);

  const std::shared_ptr<ExpertLoader> loader_;
  const std::shared_ptr<FailoverCompute> compute_;
  std::mutex mutex_;
  std::condition_variable_any settled_;
  Pending* pending_ = nullptr;  // guarded; lies with Follow
};

}  // namespace moe
