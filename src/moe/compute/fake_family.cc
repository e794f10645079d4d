#include "moe/compute/fake_family.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "base/check.h"

namespace moe {
namespace {

std::vector<float> RandomFloats(std::size_t count, std::mt19937& random) {
  std::uniform_real_distribution<float> distribution(-1, 1);
  std::vector<float> values(count);
  for (float& value : values) value = distribution(random);
  return values;
}

template <class T>
void AppendAs(const std::vector<float>& values, std::vector<std::byte>& file) {
  for (const float value : values) {
    const T stored = value;
    const std::size_t at = file.size();
    file.resize(at + sizeof(T));
    std::memcpy(file.data() + at, &stored, sizeof(T));
  }
}

std::vector<float> ReadFloats(const std::byte* data, std::size_t size, std::size_t element_size) {
  std::vector<float> values(size / element_size);
  for (std::size_t i = 0; i < values.size(); ++i) {
    double wide = 0;
    float narrow = 0;
    if (element_size == sizeof(double)) {
      std::memcpy(&wide, data + i * element_size, element_size);
      narrow = static_cast<float>(wide);
    } else {
      std::memcpy(&narrow, data + i * element_size, element_size);
    }
    values[i] = narrow;
  }
  return values;
}

}  // namespace

FakeFamily::FakeFamily(std::uint32_t seed) : shards_(2) {
  std::mt19937 random(seed);
  for (std::size_t i = 0; i < kFakeLayers * kFakeExperts; ++i) {
    experts_.push_back({.gate = RandomFloats(kFakeFf * kFakeEmbd, random),
                        .up = RandomFloats(kFakeFf * kFakeEmbd, random),
                        .down = RandomFloats(kFakeEmbd * kFakeFf, random)});
  }
  shards_[0].resize(13);
  shards_[1].resize(1);
  stacks_.resize(kFakeLayers);
  // From the last layer to the first, down before gate, up right behind gate.
  for (std::size_t l = kFakeLayers; l-- > 0;) {
    const LayerId layer(l);
    const std::size_t shard = l == 2 ? 1 : 0;
    LayerStacks& stacks = stacks_[l];
    stacks.down = Store(layer, "down", shard, &FakeExpert::down, nullptr);
    shards_[shard].resize(shards_[shard].size() + 5);
    if (fused(layer)) {
      stacks.gate = Store(layer, "gate_up", shard, &FakeExpert::gate, &FakeExpert::up);
    } else {
      stacks.gate = Store(layer, "gate", shard, &FakeExpert::gate, nullptr);
      stacks.up = Store(layer, "up", shard, &FakeExpert::up, nullptr);
    }
  }
  shape_.identity = {.architecture = "fake",
                     .name = "Fake",
                     .quantisation = "F32",
                     .num_layers = kFakeLayers,
                     .num_experts = kFakeExperts,
                     .directory_hash = seed,
                     .shape_hash = 5};
  shape_.num_experts = kFakeExperts;
  shape_.experts_per_token = kFakeUsed;
  for (const LayerStacks& stacks : stacks_) {
    shape_.layers.push_back({.block = static_cast<std::uint32_t>(2 * shape_.layers.size() + 1),
                             .unit = {.gate = stacks.gate.bytes_per_expert,
                                      .up = stacks.up ? stacks.up->bytes_per_expert : base::Bytes(),
                                      .down = stacks.down.bytes_per_expert}});
  }
}

ExpertStack FakeFamily::Store(LayerId layer, const std::string& name, std::size_t shard,
                              std::vector<float> FakeExpert::* first,
                              std::vector<float> FakeExpert::* second) {
  std::vector<std::byte>& file = shards_[shard];
  ExpertStack stack{.tensor = name + std::to_string(layer.index()),
                    .row_width = kFakeEmbd,
                    .num_rows = kFakeFf,
                    .shard = shard,
                    .offset = file.size(),
                    .bytes_per_expert = {}};
  for (std::size_t e = 0; e < kFakeExperts; ++e) {
    for (const auto member : {first, second}) {
      if (member == nullptr) continue;
      const std::vector<float>& values = expert(layer, ExpertId(e)).*member;
      if (element_size(layer) == sizeof(double)) {
        AppendAs<double>(values, file);
      } else {
        AppendAs<float>(values, file);
      }
    }
  }
  stack.bytes_per_expert = base::Bytes((file.size() - stack.offset) / kFakeExperts);
  return stack;
}

std::span<const float> FakeFamily::Gate(LayerId layer, ExpertId id) const {
  return expert(layer, id).gate;
}
std::span<const float> FakeFamily::Up(LayerId layer, ExpertId id) const {
  return expert(layer, id).up;
}
std::span<const float> FakeFamily::Down(LayerId layer, ExpertId id) const {
  return expert(layer, id).down;
}

LoadedTarget::LoadedTarget(const FakeFamily& family,
                           std::shared_ptr<const ExpertSplitMaterialization> materialization,
                           TargetId target)
    : materialization_(std::move(materialization)), stacks_(kFakeLayers) {
  const LoadList& list = materialization_->load(target);
  // A load reads extents and cuts the slices out of them.
  for (const FileExtent& extent : list.extents) {
    const std::byte* data = family.shard(extent.shard).data() + extent.offset;
    for (std::size_t i = 0; i < extent.num_slices; ++i) {
      const ExpertSlice& slice = list.slices[extent.first_slice + i];
      std::vector<FakeExpert>& stack = stacks_[slice.layer.index()];
      if (stack.size() <= slice.local.index()) stack.resize(slice.local.index() + 1);
      FakeExpert& expert = stack[slice.local.index()];
      std::vector<float> values =
          ReadFloats(data + (slice.offset - extent.offset), slice.bytes.count(),
                     FakeFamily::element_size(slice.layer));
      switch (slice.projection) {
        case ExpertProjection::kGate:
          expert.gate = std::move(values);
          break;
        case ExpertProjection::kUp:
          expert.up = std::move(values);
          break;
        case ExpertProjection::kDown:
          expert.down = std::move(values);
          break;
        case ExpertProjection::kGateUp:
          expert.up.assign(values.begin() + kFakeFf * kFakeEmbd, values.end());
          values.resize(kFakeFf * kFakeEmbd);
          expert.gate = std::move(values);
          break;
      }
    }
  }
}

void LoadedTarget::Swap(LayerId layer, LocalId a, LocalId b) {
  std::swap(stacks_[layer.index()][a.index()], stacks_[layer.index()][b.index()]);
}

const FakeExpert& LoadedTarget::at(LayerId layer, ExpertId expert) const {
  return stacks_[layer.index()][materialization_->runtime().place(layer, expert).local.index()];
}

std::span<const float> LoadedTarget::Gate(LayerId layer, ExpertId expert) const {
  return at(layer, expert).gate;
}
std::span<const float> LoadedTarget::Up(LayerId layer, ExpertId expert) const {
  return at(layer, expert).up;
}
std::span<const float> LoadedTarget::Down(LayerId layer, ExpertId expert) const {
  return at(layer, expert).down;
}

namespace {

std::vector<ExpertId> AllExperts() {
  std::vector<ExpertId> experts;
  for (std::size_t e = 0; e < kFakeExperts; ++e) experts.emplace_back(e);
  return experts;
}

}  // namespace

FakeBatch::FakeBatch(LayerId layer, std::size_t num_rows, std::uint32_t seed)
    : FakeBatch(layer, num_rows, seed, AllExperts()) {}

FakeBatch::FakeBatch(LayerId layer, std::size_t num_rows, std::uint32_t seed,
                     std::vector<ExpertId> experts) {
  std::mt19937 random(seed);
  rows_ = RandomFloats(num_rows * kFakeEmbd, random);
  weights_ = RandomFloats(num_rows * kFakeUsed, random);
  for (std::size_t row = 0; row < num_rows; ++row) {
    std::ranges::shuffle(experts, random);
    for (std::size_t slot = 0; slot < kFakeUsed; ++slot) {
      ids_.push_back(static_cast<std::int32_t>(experts[slot % experts.size()].value));
    }
  }
  batch_ = {.layer = layer,
            .num_rows = num_rows,
            .num_used = kFakeUsed,
            .n_embd = kFakeEmbd,
            .rows = rows_.data(),
            .ids = ids_.data(),
            .weights = weights_.data()};
}

base::Result<std::vector<float>> FakeBatch::Run(MoeExpertCompute& compute, std::size_t team) const {
  if (base::Result<void> begun = compute.Begin(batch_); !begun) return base::Forward(begun);
  for (std::size_t i = 0; i < team; ++i) compute.Prepare({.index = i, .count = team});
  for (std::size_t i = 0; i < team; ++i) compute.Expand({.index = i, .count = team});
  for (std::size_t i = 0; i < team; ++i) compute.Reduce({.index = i, .count = team});
  if (base::Result<void> done = compute.Finish(); !done) return base::Forward(done);
  std::vector<ExpertPart> parts;
  for (std::size_t i = 0; i < compute.num_parts(); ++i) parts.push_back(compute.part(i));
  std::vector<float> out(batch_.num_rows * batch_.n_embd, NAN);
  for (std::size_t i = 0; i < team; ++i) {
    CombineParts(batch_, parts, {.index = i, .count = team}, out.data());
  }
  return out;
}

ExpertSplitPlan PlanOf(const FakeFamily& family, const ExpertSplitTargetConfig& config,
                       std::vector<std::uint8_t> owners) {
  std::vector<PlanTarget> targets;
  for (const ExpertSplitTarget& target : config.targets()) {
    targets.push_back({.name = target.name, .capacity = std::nullopt});
  }
  base::Result<ExpertSplitPlan> plan = ExpertSplitPlan::FromOwners(
      family.shape(), Hotness::Uniform(family.shape()), std::move(targets), std::move(owners));
  ES_CHECK(plan.has_value());
  return *std::move(plan);
}

ExpertSplitPlan RandomPlan(const FakeFamily& family, const ExpertSplitTargetConfig& config,
                           std::mt19937& random) {
  std::vector<std::uint8_t> owners(kFakeLayers * kFakeExperts);
  for (std::uint8_t& owner : owners) {
    owner = static_cast<std::uint8_t>(random() % config.size());
  }
  return PlanOf(family, config, std::move(owners));
}

ExpertSplitTargetConfig ConfigOf(const std::string& list) {
  base::Result<ExpertSplitTargetConfig> config = ExpertSplitTargetConfig::Parse(list);
  ES_CHECK(config.has_value());
  return *std::move(config);
}

}  // namespace moe
