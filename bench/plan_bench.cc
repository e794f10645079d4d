// How long planning takes: 61 layers of 512 experts over eight targets. Every case first proves
// that its plan is whole and, over all repetitions, the same.
#include <benchmark/benchmark.h>

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "moe/plan/cost_model.h"
#include "moe/plan/plan.h"
#include "moe/plan/verifier.h"

namespace {

using base::Bytes;

// Three unit sizes, as in a mixed quantisation.
moe::ModelShape Shape() {
  moe::ModelShape shape;
  shape.identity = {.architecture = "bench",
                    .name = "61 x 512",
                    .quantisation = "mixed",
                    .num_layers = 61,
                    .num_experts = 512};
  shape.num_experts = 512;
  shape.experts_per_token = 10;
  for (std::uint32_t layer = 0; layer < 61; ++layer) {
    const Bytes down = Bytes::KiB(layer % 3 == 0 ? 1400 : layer % 3 == 1 ? 1120 : 960);
    shape.layers.push_back({layer, {Bytes::KiB(960), Bytes::KiB(960), down}});
  }
  return shape;
}

moe::Hotness Skewed(const moe::ModelShape& shape) {
  std::mt19937_64 random(1);
  std::vector<std::vector<std::uint64_t>> counts(shape.layers.size());
  for (auto& layer : counts) {
    for (std::uint32_t expert = 0; expert < shape.num_experts; ++expert) {
      layer.push_back(random() % (1 + random() % 100'000));
    }
  }
  return moe::Hotness::FromCounts(shape, counts);
}

void Plan(benchmark::State& state, moe::PlanPolicy policy, bool with_profile) {
  const moe::ModelShape shape = Shape();
  const moe::Hotness hotness = with_profile ? Skewed(shape) : moe::Hotness::Uniform(shape);
  moe::PlanRequest request{.shape = &shape, .hotness = &hotness, .targets = {}, .policy = policy};
  for (int target = 0; target < 7; ++target) {
    request.targets.push_back({"cuda:" + std::to_string(target), Bytes::GiB(12) + Bytes(target)});
  }
  request.targets.push_back({"cpu", std::nullopt});

  const auto first = moe::ExpertSplitPlan::Make(request);
  if (!first || !moe::VerifyPlan(*first, shape) || first->units(moe::TargetId(7)) == 0) {
    state.SkipWithError("the plan is not what this bench means to time");
    return;
  }
  for (auto _ : state) {
    const auto plan = moe::ExpertSplitPlan::Make(request);
    if (!plan || plan->fingerprint() != first->fingerprint()) {
      state.SkipWithError("the same request gave another plan");
      return;
    }
  }
}

BENCHMARK_CAPTURE(Plan, ordered_uniform, moe::PlanPolicy::kOrdered, false)
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(Plan, ordered_profile, moe::PlanPolicy::kOrdered, true)
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(Plan, layers, moe::PlanPolicy::kLayers, false)->Unit(benchmark::kMillisecond);

// 60 layers of 512 experts over six unlike targets, with a profile and without: what the search
// finds must cost less than `ordered`.
void Balanced(benchmark::State& state, bool with_profile) {
  moe::ModelShape shape = Shape();
  shape.layers.pop_back();
  shape.identity.num_layers = 60;
  const moe::Hotness hotness = with_profile ? Skewed(shape) : moe::Hotness::Uniform(shape);
  const moe::CostModel costs{.speeds = {{900e9, 18e12, 40e-6},
                                        {600e9, 12e12, 40e-6},
                                        {450e9, 8e12, 60e-6},
                                        {200e9, 2e12, 90e-6},
                                        {80e9, 4e11, 300e-6},
                                        {50e9, 3e11, 5e-6}},
                             .primary = moe::TargetId(0)};
  moe::PlanRequest request{.shape = &shape,
                           .hotness = &hotness,
                           .targets = {{"cuda:0", Bytes::GiB(20)},
                                       {"cuda:1", Bytes::GiB(12)},
                                       {"hip:0", Bytes::GiB(16)},
                                       {"vulkan:0", Bytes::GiB(8)},
                                       {"rpc:10.0.0.7:50052", Bytes::GiB(24)},
                                       {"cpu", std::nullopt}},
                           .policy = moe::PlanPolicy::kOrdered,
                           .costs = &costs};
  const auto cost = [&](const moe::ExpertSplitPlan& plan) {
    return moe::ExpectSeconds(shape, hotness, plan.owners(), costs).Weighted(costs);
  };
  const auto ordered = moe::ExpertSplitPlan::Make(request);
  request.policy = moe::PlanPolicy::kBalanced;
  const auto first = moe::ExpertSplitPlan::Make(request);
  if (!ordered || !first || cost(*first) >= cost(*ordered)) {
    state.SkipWithError("the plan is not what this bench means to time");
    return;
  }
  for (auto _ : state) {
    const auto plan = moe::ExpertSplitPlan::Make(request);
    if (!plan || plan->fingerprint() != first->fingerprint()) {
      state.SkipWithError("the same request gave another plan");
      return;
    }
  }
  state.counters["ordered_time_over_ours"] = cost(*ordered) / cost(*first);
}

BENCHMARK_CAPTURE(Balanced, uniform, false)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(Balanced, profile, true)->Unit(benchmark::kMillisecond);

}  // namespace

BENCHMARK_MAIN();
