#include "moe/rebalance/rebalancer.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <exception>
#include <memory>
#include <utility>

#include "base/check.h"
#include "base/sleep.h"

namespace moe {
namespace {

// After a move that failed.
constexpr std::chrono::milliseconds kRest = std::chrono::seconds(30);

}  // namespace

Rebalancer::Rebalancer(RebalancerOptions options)
    : options_(std::move(options)), traffic_(*options_.shape, options_.rules.half_life_tokens) {
  ES_CHECK(options_.bytes_per_second > base::Bytes());
  thread_ = std::jthread([this](const std::stop_token& stop) { Run(stop); });
}

RebalanceCounts Rebalancer::counts() const {
  const std::lock_guard lock(mutex_);
  return counts_;
}

void Rebalancer::Run(const std::stop_token& stop) {
  // Of this thread alone, on Linux; moves have time, tokens have not.
  static_cast<void>(::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), 19));
  std::chrono::milliseconds wait = options_.period;
  while (base::SleepUnlessStopped(wait, stop)) {
    try {
      wait = Look(stop);
    } catch (const std::exception& error) {
      Fail({base::ErrorKind::kInternal, error.what()});
      wait = kRest;
    }
  }
}

std::chrono::milliseconds Rebalancer::Look(const std::stop_token& stop) {
  traffic_.Observe(options_.routed->Snapshot());
  const MovableUnits units = options_.mover->units();
  const std::vector<UnitExchange> exchanges =
      ChooseExchanges({.shape = options_.shape,
                       .units = &units,
                       .traffic = &traffic_,
                       .costs = options_.costs ? &*options_.costs : nullptr,
                       .rules = options_.rules,
                       .budget = options_.bytes_per_second});
  if (exchanges.empty()) return options_.period;
  const auto start = std::chrono::steady_clock::now();
  const auto moved = options_.mover->Exchange(
      exchanges, std::make_shared<const Hotness>(traffic_.HotnessNow(*options_.shape)), stop);
  if (!moved) {
    if (moved.error().kind == base::ErrorKind::kCancelled ||
        moved.error().kind == base::ErrorKind::kUnavailable) {
      return options_.period;
    }
    Fail(moved.error());
    return kRest;
  }
  {
    const std::lock_guard lock(mutex_);
    counts_.exchanges += exchanges.size();
    counts_.units += 2 * exchanges.size();
    counts_.bytes += *moved;
  }
  options_.log.Debug("exchanged the owners of {} pairs of experts, {}", exchanges.size(),
                     base::FormatBytes(*moved));
  // The bytes' part of a second, from when they began to move.
  const std::chrono::duration<double> due(static_cast<double>(moved->count()) /
                                          static_cast<double>(options_.bytes_per_second.count()));
  const auto left = due - (std::chrono::steady_clock::now() - start);
  return std::max(options_.period, std::chrono::duration_cast<std::chrono::milliseconds>(left) +
                                       std::chrono::milliseconds(1));
}

void Rebalancer::Fail(const base::Error& error) {
  {
    const std::lock_guard lock(mutex_);
    ++counts_.failures;
  }
  if (std::exchange(has_complained_, true)) {
    options_.log.Debug("experts did not move: {}", error.message);
  } else {
    options_.log.Warning("experts did not move: {}; the placement stays as it is", error.message);
  }
}

}  // namespace moe
