#include "moe/materialize/materialization.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "base/check.h"

namespace moe {
namespace {

// One stack's bytes, for all experts.
struct StackRange {
  const ExpertStack* stack = nullptr;
  std::uint64_t end = 0;
};

base::Result<StackRange> RangeOf(const ExpertStack& stack, std::size_t num_experts) {
  if (stack.bytes_per_expert == base::Bytes()) {
    return base::Fail(base::ErrorKind::kCorruptModel,
                      "tensor {}: an expert of 0 bytes; the model file is damaged", stack.tensor);
  }
  const base::Bytes end = base::Bytes(stack.offset) + stack.bytes_per_expert * num_experts;
  if (end == base::Bytes::Max()) {
    return base::Fail(base::ErrorKind::kCorruptModel,
                      "tensor {}: {} experts of {} bytes from offset {} reach beyond any file; the "
                      "model file is damaged",
                      stack.tensor, num_experts, stack.bytes_per_expert.count(), stack.offset);
  }
  return StackRange{&stack, end.count()};
}

base::Result<void> CheckStacks(const ExpertStacks& stacks, const ExpertSplitRuntime& runtime) {
  if (stacks.size() != runtime.num_layers()) {
    return base::Fail(base::ErrorKind::kCorruptModel,
                      "the model has {} layers of experts but the plan is for {}; make a new plan",
                      stacks.size(), runtime.num_layers());
  }
  std::vector<StackRange> ranges;
  for (const LayerStacks& layer : stacks) {
    const ExpertStack* const of_layer[] = {&layer.gate, layer.up ? &*layer.up : nullptr,
                                           &layer.down};
    for (const ExpertStack* stack : of_layer) {
      if (stack == nullptr) continue;
      base::Result<StackRange> range = RangeOf(*stack, runtime.num_experts());
      if (!range) return base::Forward(range);
      ranges.push_back(*range);
    }
  }
  std::ranges::sort(ranges, {}, [](const StackRange& range) {
    return std::tuple(range.stack->shard, range.stack->offset);
  });
  for (std::size_t i = 1; i < ranges.size(); ++i) {
    const ExpertStack& before = *ranges[i - 1].stack;
    const ExpertStack& stack = *ranges[i].stack;
    if (before.shard == stack.shard && ranges[i - 1].end > stack.offset) {
      return base::Fail(base::ErrorKind::kCorruptModel,
                        "tensors {} and {} overlap at offset {}; the model file is damaged",
                        before.tensor, stack.tensor, stack.offset);
    }
  }
  return {};
}

ExpertSlice SliceOf(const ExpertStack& stack, ExpertProjection projection, LayerId layer,
                    ExpertId expert, const ExpertSplitRuntime::Place& place) {
  return {.layer = layer,
          .projection = projection,
          .expert = expert,
          .owner = place.owner,
          .local = place.local,
          .shard = stack.shard,
          .offset = stack.offset + stack.bytes_per_expert.count() * expert.index(),
          .bytes = stack.bytes_per_expert};
}

// Puts the slices in file order and derives extents and sum from them.
void Finish(LoadList& list) {
  std::ranges::sort(list.slices, {},
                    [](const ExpertSlice& slice) { return std::tuple(slice.shard, slice.offset); });
  for (std::size_t i = 0; i < list.slices.size(); ++i) {
    const ExpertSlice& slice = list.slices[i];
    list.bytes += slice.bytes;
    if (!list.extents.empty()) {
      FileExtent& last = list.extents.back();
      if (last.shard == slice.shard && last.offset + last.bytes.count() == slice.offset) {
        last.bytes += slice.bytes;
        ++last.num_slices;
        continue;
      }
    }
    list.extents.push_back({.shard = slice.shard,
                            .offset = slice.offset,
                            .bytes = slice.bytes,
                            .first_slice = i,
                            .num_slices = 1});
  }
}

}  // namespace

std::string_view ExpertProjectionName(ExpertProjection projection) {
  switch (projection) {
    case ExpertProjection::kGate:
      return "gate";
    case ExpertProjection::kUp:
      return "up";
    case ExpertProjection::kDown:
      return "down";
    case ExpertProjection::kGateUp:
      return "gate_up";
  }
  return "";
}

base::Result<std::shared_ptr<const ExpertSplitMaterialization>> ExpertSplitMaterialization::Make(
    ExpertStacks stacks, std::shared_ptr<const ExpertSplitRuntime> runtime, TargetId primary) {
  ES_CHECK(primary.index() < runtime->num_targets());
  if (base::Result<void> checked = CheckStacks(stacks, *runtime); !checked) {
    return base::Forward(checked);
  }
  std::shared_ptr<ExpertSplitMaterialization> made(new ExpertSplitMaterialization);
  made->stacks_ = std::move(stacks);
  made->runtime_ = std::move(runtime);
  made->primary_ = primary;
  made->loads_.resize(made->runtime_->num_targets());

  for (std::size_t l = 0; l < made->stacks_.size(); ++l) {
    const LayerId layer(l);
    const LayerStacks& of_layer = made->stacks_[l];
    const ExpertProjection gate = of_layer.up ? ExpertProjection::kGate : ExpertProjection::kGateUp;
    for (std::size_t e = 0; e < made->runtime_->num_experts(); ++e) {
      const ExpertId expert(e);
      const ExpertSplitRuntime::Place place = made->runtime_->place(layer, expert);
      std::vector<ExpertSlice>& slices = made->loads_[place.owner.index()].slices;
      slices.push_back(SliceOf(of_layer.gate, gate, layer, expert, place));
      if (of_layer.up) {
        slices.push_back(SliceOf(*of_layer.up, ExpertProjection::kUp, layer, expert, place));
      }
      slices.push_back(SliceOf(of_layer.down, ExpertProjection::kDown, layer, expert, place));
    }
  }
  for (std::size_t t = 0; t < made->loads_.size(); ++t) {
    Finish(made->loads_[t]);
    if (t == primary.index()) continue;
    std::vector<ExpertSlice>& all = made->off_primary_.slices;
    all.insert(all.end(), made->loads_[t].slices.begin(), made->loads_[t].slices.end());
  }
  Finish(made->off_primary_);
  return made;
}

}  // namespace moe
