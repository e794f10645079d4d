#include "cli/target_costs.h"

#include <algorithm>
#include <format>
#include <memory>
#include <string>
#include <thread>

#include "base/quote.h"
#include "cli/device_targets.h"
#include "cli/speed_cache.h"
#include "moe/compute/measure_speed.h"

namespace cli {
namespace {

moe::TargetSpeed Assume(const moe::AssumedTarget& assumed, bool on_cpu) {
  const auto speed = static_cast<double>(assumed.bytes_per_second.count());
  return {.decode_bytes_per_second = speed,
          .prompt_bytes_per_second = speed * (on_cpu ? kAssumedCpuReuse : kAssumedDeviceReuse),
          .layer_seconds = assumed.is_cpu ? 0 : kAssumedLayerSeconds};
}

std::string Rate(double bytes_per_second) {
  return std::format("{:.1f} GB/s", bytes_per_second / 1e9);
}

class Meter {
 public:
  Meter(const Session& session, const CostRequest& request)
      : session_(session),
        request_(request),
        threads_(request.threads > 0 ? request.threads
                                     : std::max(1U, std::thread::hardware_concurrency())) {}

  base::Result<moe::TargetSpeed> SpeedOf(const gg::Device& device) {
    const std::string key = Key(device);
    if (const auto known = cache_.Find(key)) return *known;
    auto measured = moe::MeasureSpeed({.shape = &request_.model->shape,
                                       .weights = Weights(),
                                       .device = device,
                                       .repack = request_.repack,
                                       .num_threads = threads_,
                                       .prompt_rows = request_.prompt_rows});
    if (!measured) return measured;
    session_.log.Info(
        "measured {}: {} of expert weights one token at a time, {} in prompts, {:.0f} us a layer",
        device.name, Rate(measured->decode_bytes_per_second),
        Rate(measured->prompt_bytes_per_second), 1e6 * measured->layer_seconds);
    if (!cache_.Store(key, *measured)) {
      session_.log.Debug("the speed of {} could not be kept", device.name);
    }
    return measured;
  }

 private:
  // Everything that a speed depends on and that may be another one tomorrow.
  std::string Key(const gg::Device& device) const {
    const moe::LayerStacks& layer = request_.model->stacks.front();
    std::string key = std::format("{} {} {} {}; types {} {} {}, {} x {}, {} of {} experts, {} rows",
                                  EXPERT_SPLIT_VERSION, device.name, device.description,
                                  device.device_id, layer.gate.type, layer.up ? layer.up->type : -1,
                                  layer.down.type, layer.down.num_rows, layer.down.row_width,
                                  request_.model->shape.experts_per_token,
                                  request_.model->shape.num_experts, request_.prompt_rows);
    if (device.is_cpu()) {
      key += std::format(", {} threads, {}", threads_,
                         request_.repack == moe::Repack::kAuto ? "packed" : "mapped");
    }
    return key;
  }

  std::shared_ptr<const moe::ExpertWeights> Weights() const {
    std::vector<std::span<const std::byte>> shards;
    for (const base::MappedFile& shard : request_.file->shards()) shards.push_back(shard.bytes());
    return std::make_shared<const moe::ExpertWeights>(
        moe::MapExpertWeights(request_.model->stacks, request_.model->shape.num_experts, shards));
  }

  const Session& session_;
  const CostRequest& request_;
  std::uint32_t threads_;
  SpeedCache cache_{SpeedCache::DefaultPath()};
};

// The device of this process that computes the target's units; nullptr when there is none.
const gg::Device* DeviceOf(const moe::ExpertSplitTarget& target,
                           std::span<const gg::Device> devices) {
  if (target.in_process_cpu()) return gg::FindDevice(devices, "cpu");
  return target.place == moe::TargetPlace::kDevice ? gg::FindDevice(devices, target.name) : nullptr;
}

std::unexpected<base::Error> Unknown(const moe::ExpertSplitTarget& target, std::size_t position) {
  return base::Fail(base::ErrorKind::kInvalidInput,
                    "target list item {} {}: its speed is unknown, because it is not a device of "
                    "this process; give it as in --assume {}=900GB/s",
                    position, base::Quote(target.name), target.name);
}

}  // namespace

base::Result<moe::CostModel> TargetCosts(const Session& session, const CostRequest& request) {
  moe::CostModel costs{
      .speeds = {}, .primary = request.config->primary(), .prompt_rows = request.prompt_rows};
  Meter meter(session, request);
  for (std::size_t t = 0; t < request.config->size(); ++t) {
    const moe::ExpertSplitTarget& target = request.config->targets()[t];
    const bool on_cpu = target.inner_place == moe::TargetPlace::kCpu ||
                        target.inner_place == moe::TargetPlace::kNuma;
    if (const auto* assumed = moe::FindAssumed(*request.assumed, target.name)) {
      costs.speeds.push_back(Assume(*assumed, on_cpu));
      continue;
    }
    if (request.capacities[t] == base::Bytes()) {
      costs.speeds.push_back({.decode_bytes_per_second = 1, .prompt_bytes_per_second = 1});
      continue;
    }
    const gg::Device* device = DeviceOf(target, request.devices);
    if (device == nullptr) return Unknown(target, t + 1);
    auto speed = meter.SpeedOf(*device);
    if (!speed) return base::Forward(speed);
    costs.speeds.push_back(*speed);
  }
  // The expert node is a part of the CPU's own graph.
  if (request.config->targets()[costs.primary.index()].in_process_cpu()) {
    costs.speeds[costs.primary.index()].layer_seconds = 0;
  }
  return costs;
}

}  // namespace cli
