#include "moe/profile/profile.h"

#include <algorithm>
#include <cmath>
#include <format>
#include <utility>

#include "base/check.h"
#include "base/quote.h"
#include "moe/plan/json_fields.h"

namespace moe {

using base::ErrorKind;
using base::Fail;

RoutingProfile::RoutingProfile(ModelIdentity model, std::string text)
    : model_(std::move(model)),
      text_(std::move(text)),
      counts_(model_.num_layers, std::vector<std::uint64_t>(model_.num_experts, 0)) {}

base::Result<void> RoutingProfile::CountStep(std::span<const std::int32_t> ids,
                                             std::size_t num_tokens, std::size_t num_used) {
  const std::size_t line = counts_.empty() ? 0 : ids.size() / counts_.size();
  ES_CHECK(line * counts_.size() == ids.size() && num_tokens * num_used <= line);
  const auto selections = [&](std::size_t layer) {
    return ids.subspan(layer * line, num_tokens * num_used);
  };
  for (std::size_t layer = 0; layer < counts_.size(); ++layer) {
    for (const std::int32_t id : selections(layer)) {
      if (static_cast<std::uint32_t>(id) < model_.num_experts) continue;
      return Fail(ErrorKind::kDeviceFailure,
                  "the router of layer {} selected expert {}, but there are {}: the device that "
                  "runs it computes wrong numbers; leave it out of --targets",
                  layer, id, model_.num_experts);
    }
  }
  for (std::size_t layer = 0; layer < counts_.size(); ++layer) {
    std::vector<std::uint64_t>& counts = counts_[layer];
    for (const std::int32_t id : selections(layer)) ++counts[static_cast<std::uint32_t>(id)];
  }
  num_tokens_ += num_tokens;
  return {};
}

base::Result<RoutingProfile> RoutingProfile::FromCounts(
    ModelIdentity model, std::string text, std::uint64_t num_tokens,
    std::vector<std::vector<std::uint64_t>> counts) {
  if (num_tokens > kMaxCount) {
    return Fail(ErrorKind::kInvalidInput, "{} tokens are more than the {} that a profile holds",
                num_tokens, kMaxCount);
  }
  if (counts.size() != model.num_layers) {
    return Fail(ErrorKind::kInvalidInput, "counts for {} layers, expected {}", counts.size(),
                model.num_layers);
  }
  for (std::size_t layer = 0; layer < counts.size(); ++layer) {
    if (counts[layer].empty() || counts[layer].size() != model.num_experts) {
      return Fail(ErrorKind::kInvalidInput, "layer {} has counts for {} experts, expected {}",
                  layer, counts[layer].size(), model.num_experts);
    }
    const auto most = std::ranges::max_element(counts[layer]);
    if (*most > num_tokens) {
      return Fail(ErrorKind::kInvalidInput,
                  "layer {}, expert {} was selected {} times by {} tokens; a token selects an "
                  "expert once at most",
                  layer, most - counts[layer].begin(), *most, num_tokens);
    }
  }
  RoutingProfile profile(std::move(model), std::move(text));
  profile.num_tokens_ = num_tokens;
  profile.counts_ = std::move(counts);
  return profile;
}

namespace {

bool SameModel(const ModelIdentity& a, const ModelIdentity& b) {
  return a.architecture == b.architecture && a.num_layers == b.num_layers &&
         a.num_experts == b.num_experts && a.shape_hash == b.shape_hash;
}

std::string MergedText(std::span<const WeightedProfile> profiles) {
  std::string text;
  for (const auto& [profile, weight] : profiles) {
    if (!text.empty()) text += " + ";
    if (weight != 1) text += std::format("{}*", weight);
    text += profile->text();
  }
  return text;
}

}  // namespace

base::Result<RoutingProfile> MergeProfiles(std::span<const WeightedProfile> profiles) {
  if (profiles.empty())
    return Fail(ErrorKind::kInvalidInput, "no profile to merge; name at least one");
  const ModelIdentity& model = profiles.front().profile->model();
  std::vector<double> sums(std::size_t{model.num_layers} * model.num_experts, 0);
  double tokens = 0;
  for (const auto& [profile, weight] : profiles) {
    if (!(weight > 0) || !std::isfinite(weight)) {
      return Fail(ErrorKind::kInvalidInput,
                  "weight {} of profile {} is not a finite number above 0", weight,
                  base::Quote(profile->text()));
    }
    if (!SameModel(profile->model(), model)) {
      return Fail(ErrorKind::kCorruptModel,
                  "profiles of two models cannot be merged: {} is of {}, {} is of {}",
                  base::Quote(profiles.front().profile->text()), DescribeIdentity(model),
                  base::Quote(profile->text()), DescribeIdentity(profile->model()));
    }
    tokens += weight * static_cast<double>(profile->num_tokens());
    auto sum = sums.begin();
    for (const auto& layer : profile->counts()) {
      for (const std::uint64_t count : layer) *sum++ += weight * static_cast<double>(count);
    }
  }
  // No count exceeds its profile's tokens, so no sum exceeds this one.
  if (!(tokens <= static_cast<double>(RoutingProfile::kMaxCount))) {
    return Fail(ErrorKind::kInvalidInput,
                "the merged profile would have more than {} tokens; use smaller weights",
                RoutingProfile::kMaxCount);
  }
  if (tokens < 0.5) {
    return Fail(ErrorKind::kInvalidInput,
                "the merged profile would have no token left; use larger weights");
  }
  const auto rounded_tokens = static_cast<std::uint64_t>(std::llround(tokens));
  std::vector<std::vector<std::uint64_t>> counts(model.num_layers);
  auto sum = sums.begin();
  for (auto& layer : counts) {
    for (std::uint32_t expert = 0; expert < model.num_experts; ++expert) {
      const auto count = static_cast<std::uint64_t>(std::llround(*sum++));
      layer.push_back(std::min(count, rounded_tokens));
    }
  }
  return RoutingProfile::FromCounts(model, MergedText(profiles), rounded_tokens, std::move(counts));
}

base::Result<std::string> CheckProfileModel(const RoutingProfile& profile,
                                            const ModelIdentity& model) {
  const ModelIdentity written = AsWritten(model);
  const ModelIdentity recorded = AsWritten(profile.model());
  if (!SameModel(recorded, written)) {
    return Fail(ErrorKind::kCorruptModel,
                "the profile of {} is for {} (shapes {:016x}), the model is {} (shapes {:016x}); "
                "record one of this model with `expert-split profile`",
                base::Quote(profile.text()), DescribeIdentity(recorded), recorded.shape_hash,
                DescribeIdentity(written), written.shape_hash);
  }
  if (recorded.quantisation != written.quantisation ||
      recorded.directory_hash != written.directory_hash) {
    return std::format(
        "the profile was recorded with another quantisation of the model: {}, not {}",
        base::Quote(recorded.quantisation), base::Quote(written.quantisation));
  }
  if (recorded.name != written.name) {
    return std::format("the profile was recorded with a model of the same shapes named {}, not {}",
                       base::Quote(recorded.name), base::Quote(written.name));
  }
  return std::string();
}

Hotness HotnessOf(const RoutingProfile& profile, const ModelShape& shape) {
  return Hotness::FromCounts(shape, profile.counts());
}

}  // namespace moe
