#include "model/qwen35moe/hparams.h"

#include <algorithm>
#include <cmath>
#include <format>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/quote.h"

namespace model::qwen35moe {
namespace {

using base::ErrorKind;
using base::Fail;
using base::Forward;
using base::Result;

// No model comes near these; they keep every product of two widths inside 64 bits and every
// derived width inside 32.
constexpr std::uint32_t kMaxWidth = 1U << 24;
constexpr std::uint32_t kMaxBlocks = 4096;
constexpr std::uint32_t kMaxExperts = 1U << 16;
constexpr std::uint32_t kMaxHeads = 4096;
constexpr std::uint32_t kMaxHeadDim = 4096;
constexpr std::uint32_t kMaxConvKernel = 64;

std::string Key(std::string_view suffix) { return std::format("qwen35moe.{}", suffix); }

std::unexpected<base::Error> Refuse(const gg::GgufFile& file, std::string_view suffix, auto value,
                                    std::string_view expected) {
  return Fail(ErrorKind::kCorruptModel, "'{}': key {} is {}, expected {}", file.name(), Key(suffix),
              value, expected);
}

// Reads keys one after another and remembers the first thing that was wrong.
class KeyReader {
 public:
  explicit KeyReader(const gg::GgufFile& file) : file_(file) {}

  std::uint32_t Required(std::string_view suffix, std::uint32_t min, std::uint32_t max) {
    auto value = file_.Uint32(Key(suffix));
    if (!value) return Keep(std::move(value.error())), min;
    return InRange(suffix, *value, min, max);
  }

  std::uint32_t Optional(std::string_view suffix, std::uint32_t fallback, std::uint32_t min,
                         std::uint32_t max) {
    return file_.Has(Key(suffix)) ? Required(suffix, min, max) : fallback;
  }

  // Zero in the file means absent, as converters write it.
  std::uint32_t OptionalNonZero(std::string_view suffix, std::uint32_t max) {
    return Optional(suffix, 0, 0, max);
  }

  float OptionalFloat(std::string_view suffix, float fallback) {
    return file_.Has(Key(suffix)) ? RequiredFloat(suffix) : fallback;
  }

  float RequiredFloat(std::string_view suffix) {
    auto value = file_.Float(Key(suffix));
    if (!value) return Keep(std::move(value.error())), 0.0F;
    if (!std::isfinite(*value)) Refused(suffix, *value, "a finite number");
    return *value;
  }

  void Refused(std::string_view suffix, auto value, std::string_view expected) {
    if (!error_) error_ = Refuse(file_, suffix, value, expected).error();
  }

  void Keep(base::Error error) {
    if (!error_) error_ = std::move(error);
  }

  const gg::GgufFile& file() const { return file_; }
  std::optional<base::Error>& error() { return error_; }

 private:
  std::uint32_t InRange(std::string_view suffix, std::uint32_t value, std::uint32_t min,
                        std::uint32_t max) {
    if (value < min || value > max) {
      Refused(suffix, value, std::format("{} to {}", min, max));
      return min;
    }
    return value;
  }

  const gg::GgufFile& file_;
  std::optional<base::Error> error_;
};

const gg::GgufFile::Array* FindArray(const gg::GgufFile& file, std::string_view suffix) {
  const auto found = file.metadata().find(Key(suffix));
  if (found == file.metadata().end()) return nullptr;
  return std::get_if<gg::GgufFile::Array>(&found->second);
}

// An array of flags or numbers as numbers; nothing when it holds something else.
std::optional<std::vector<std::int64_t>> Integers(const gg::GgufFile::Array& array) {
  if (const auto* numbers = std::get_if<std::vector<std::int64_t>>(&array)) return *numbers;
  if (const auto* flags = std::get_if<std::vector<bool>>(&array)) {
    return std::vector<std::int64_t>(flags->begin(), flags->end());
  }
  return std::nullopt;
}

void ReadSizes(KeyReader& keys, Hparams& hparams) {
  const std::uint32_t blocks = keys.Required("block_count", 1, kMaxBlocks);
  hparams.num_nextn_layers = keys.Optional("nextn_predict_layers", 0, 0, blocks - 1);
  hparams.num_layers = blocks - hparams.num_nextn_layers;
  hparams.n_embd = keys.Required("embedding_length", 1, kMaxWidth);
  hparams.context_length = keys.Required("context_length", 1, 1U << 30);
  hparams.norm_epsilon = keys.RequiredFloat("attention.layer_norm_rms_epsilon");
  if (hparams.norm_epsilon < 0.0F) {
    keys.Refused("attention.layer_norm_rms_epsilon", hparams.norm_epsilon, "0 or more");
  }
  const gg::GgufTensor* embedding = keys.file().FindTensor("token_embd.weight");
  if (embedding == nullptr || embedding->shape.size() != 2 || embedding->shape[1] == 0 ||
      embedding->shape[1] > kMaxWidth) {
    keys.Keep({ErrorKind::kCorruptModel,
               std::format("'{}': tensor token_embd.weight is missing or not [vocabulary, {}]",
                           keys.file().name(), hparams.n_embd)});
    return;
  }
  hparams.num_vocab = static_cast<std::uint32_t>(embedding->shape[1]);
}

void ReadLayerKinds(KeyReader& keys, Hparams& hparams) {
  constexpr std::string_view kKey = "attention.recurrent_layers";
  const std::uint32_t interval = keys.Optional("full_attention_interval", 4, 1, kMaxBlocks);
  hparams.recurrent.resize(hparams.num_layers);
  for (std::uint32_t layer = 0; layer < hparams.num_layers; ++layer) {
    hparams.recurrent[layer] = (layer + 1) % interval != 0;
  }
  if (!keys.file().Has(Key(kKey))) return;
  const gg::GgufFile::Array* array = FindArray(keys.file(), kKey);
  if (array == nullptr) {
    hparams.recurrent.assign(hparams.num_layers, keys.Required(kKey, 0, 1) != 0);
    return;
  }
  const auto flags = Integers(*array);
  if (!flags || flags->size() < hparams.num_layers) {
    return keys.Refused(kKey, "an array of another type or length", "one flag a block");
  }
  for (std::uint32_t layer = 0; layer < hparams.num_layers; ++layer) {
    hparams.recurrent[layer] = (*flags)[layer] != 0;
  }
}

// A head count is one number, or one a block, where the entries of recurrent layers mean nothing.
std::uint32_t ReadHeadCount(KeyReader& keys, const Hparams& hparams, std::string_view suffix) {
  const gg::GgufFile::Array* array = FindArray(keys.file(), suffix);
  if (array == nullptr) return keys.Required(suffix, 1, kMaxHeads);
  const auto counts = Integers(*array);
  if (!counts || counts->size() < hparams.num_layers) {
    keys.Refused(suffix, "an array of another type or length", "one count a block");
    return 1;
  }
  std::optional<std::int64_t> common;
  for (std::uint32_t layer = 0; layer < hparams.num_layers; ++layer) {
    if (hparams.recurrent[layer]) continue;
    const std::int64_t count = (*counts)[layer];
    if (count < 1 || count > kMaxHeads || (common && *common != count)) {
      keys.Refused(suffix, count, "the same count, at least 1, in every full-attention layer");
      return 1;
    }
    common = count;
  }
  return static_cast<std::uint32_t>(common.value_or(1));
}

void ReadRopeScaling(KeyReader& keys, const Hparams& hparams, RopeParameters& rope) {
  std::string type = "linear";
  if (keys.file().Has(Key("rope.scaling.type"))) {
    auto given = keys.file().String(Key("rope.scaling.type"));
    if (!given) return keys.Keep(std::move(given.error()));
    type = *std::move(given);
  }
  if (type != "none" && type != "linear" && type != "yarn") {
    return keys.Refused("rope.scaling.type", base::Quote(type), "none, linear or yarn");
  }
  const float factor = keys.OptionalFloat("rope.scaling.factor", 0.0F);
  if (factor < 0.0F) return keys.Refused("rope.scaling.factor", factor, "0 (unused) or more");
  if (type != "none" && factor > 0.0F) rope.freq_scale = 1.0F / factor;
  rope.original_context =
      keys.Optional("rope.scaling.original_context_length", hparams.context_length, 1, 1U << 30);
  rope.beta_fast = keys.OptionalFloat("rope.scaling.yarn_beta_fast", 32.0F);
  rope.beta_slow = keys.OptionalFloat("rope.scaling.yarn_beta_slow", 1.0F);
  rope.attn_factor = keys.OptionalFloat("rope.scaling.attn_factor", 1.0F);
  if (type != "yarn") return;
  const float ext = keys.OptionalFloat("rope.scaling.yarn_ext_factor", -1.0F);
  rope.ext_factor = ext < 0.0F ? 1.0F : ext;
  // ggml applies YaRN's magnitude factor itself; a log multiplier divides by its own.
  const float log_multiplier = keys.OptionalFloat("rope.scaling.yarn_log_multiplier", 0.0F);
  if (rope.ext_factor > 0.0F && log_multiplier != 0.0F && factor > 1.0F) {
    rope.attn_factor /= 1.0F + 0.1F * log_multiplier * std::log(factor);
  }
}

void ReadRope(KeyReader& keys, Hparams& hparams) {
  RopeParameters& rope = hparams.rope;
  rope.num_dims = keys.Optional("rope.dimension_count", hparams.head_dim, 2, hparams.head_dim);
  if (rope.num_dims % 2 != 0) {
    return keys.Refused("rope.dimension_count", rope.num_dims, "an even number");
  }
  rope.freq_base = keys.OptionalFloat("rope.freq_base", 10000.0F);
  if (rope.freq_base <= 0.0F) keys.Refused("rope.freq_base", rope.freq_base, "more than 0");
  constexpr std::string_view kSections = "rope.dimension_sections";
  auto sections = keys.file().IntArray(Key(kSections));
  if (!sections) return keys.Keep(std::move(sections.error()));
  if (sections->size() < 3 || sections->size() > 4) {
    return keys.Refused(kSections, std::format("an array of {}", sections->size()), "4 sections");
  }
  std::int64_t sum = 0;
  for (std::size_t i = 0; i < sections->size(); ++i) {
    const std::int64_t section = (*sections)[i];
    if (section < 0 || section > hparams.head_dim) {
      return keys.Refused(kSections, section, std::format("sections of 0 to {}", hparams.head_dim));
    }
    rope.sections[i] = static_cast<std::int32_t>(section);
    sum += section;
  }
  if (sum < 1 || sum > hparams.head_dim) {
    return keys.Refused(kSections, sum, std::format("a sum of 1 to {}", hparams.head_dim));
  }
  ReadRopeScaling(keys, hparams, rope);
}

void ReadAttention(KeyReader& keys, Hparams& hparams) {
  hparams.num_heads = ReadHeadCount(keys, hparams, "attention.head_count");
  hparams.num_kv_heads = keys.file().Has(Key("attention.head_count_kv"))
                             ? ReadHeadCount(keys, hparams, "attention.head_count_kv")
                             : hparams.num_heads;
  if (hparams.num_heads % hparams.num_kv_heads != 0) {
    keys.Refused("attention.head_count_kv", hparams.num_kv_heads,
                 std::format("a divisor of the {} heads", hparams.num_heads));
  }
  const std::uint32_t fallback =
      std::clamp(hparams.n_embd / hparams.num_heads, std::uint32_t{2}, kMaxHeadDim);
  hparams.head_dim = keys.Optional("attention.key_length", fallback, 2, kMaxHeadDim);
  const std::uint32_t value_dim = keys.Optional("attention.value_length", fallback, 2, kMaxHeadDim);
  if (value_dim != hparams.head_dim || value_dim % 2 != 0) {
    keys.Refused("attention.value_length", value_dim,
                 std::format("attention.key_length ({}), an even number", hparams.head_dim));
  }
  const float scale = keys.OptionalFloat("attention.scale", 0.0F);
  hparams.attention_scale =
      scale != 0.0F ? scale : 1.0F / std::sqrt(static_cast<float>(hparams.head_dim));
  ReadRope(keys, hparams);
}

void ReadDeltaNet(KeyReader& keys, Hparams& hparams) {
  hparams.conv_kernel = keys.Required("ssm.conv_kernel", 2, kMaxConvKernel);
  hparams.num_key_heads = keys.Required("ssm.group_count", 1, kMaxHeads);
  hparams.num_value_heads = keys.Required("ssm.time_step_rank", 1, kMaxHeads);
  hparams.state_dim = keys.Required("ssm.state_size", 1, kMaxHeadDim);
  if (hparams.num_value_heads % hparams.num_key_heads != 0) {
    keys.Refused("ssm.group_count", hparams.num_key_heads,
                 std::format("a divisor of the {} value heads", hparams.num_value_heads));
  }
  const std::uint32_t inner = keys.Required("ssm.inner_size", 1, kMaxWidth);
  if (inner != hparams.value_dim()) {
    keys.Refused("ssm.inner_size", inner,
                 std::format("ssm.time_step_rank x ssm.state_size = {}", hparams.value_dim()));
  }
}

void ReadExperts(KeyReader& keys, Hparams& hparams) {
  hparams.num_experts = keys.Required("expert_count", 1, kMaxExperts);
  hparams.experts_per_token = keys.Required("expert_used_count", 1, hparams.num_experts);
  hparams.n_ff_expert = keys.OptionalNonZero("expert_feed_forward_length", kMaxWidth);
  hparams.n_ff_shared = keys.OptionalNonZero("expert_shared_feed_forward_length", kMaxWidth);
  if (hparams.n_ff_expert == 0) {
    hparams.n_ff_expert =
        keys.Required("feed_forward_length", hparams.experts_per_token, kMaxWidth) /
        hparams.experts_per_token;
  }
  if (hparams.n_ff_shared == 0) {
    hparams.n_ff_shared = keys.Required("feed_forward_length", 1, kMaxWidth);
  }
  const float scale = keys.OptionalFloat("expert_weights_scale", 0.0F);
  hparams.expert_weights_scale = scale != 0.0F ? scale : 1.0F;
}

}  // namespace

std::uint32_t Hparams::num_recurrent_layers() const {
  return static_cast<std::uint32_t>(std::ranges::count(recurrent, true));
}

Result<Hparams> ReadHparams(const gg::GgufFile& file) {
  KeyReader keys(file);
  Hparams hparams;
  ReadSizes(keys, hparams);
  ReadLayerKinds(keys, hparams);
  ReadAttention(keys, hparams);
  ReadDeltaNet(keys, hparams);
  ReadExperts(keys, hparams);
  if (keys.error()) return std::unexpected(*std::move(keys.error()));
  return hparams;
}

}  // namespace model::qwen35moe
