// Plan files of a model of two layers of eight experts (that of docs/plan_file.md). What reads
// prints as a file that reads as the same plan; what does not has a message of one printable line.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.h"
#include "moe/plan/plan_file.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const moe::LayerShape kLayer = {
      .block = 0, .unit = {.gate = base::Bytes::KiB(512), .up = {}, .down = base::Bytes::KiB(512)}};
  static const moe::ModelShape kShape = {.identity = {.architecture = "examplemoe",
                                                      .name = "Demo",
                                                      .quantisation = "Q8_0",
                                                      .num_layers = 2,
                                                      .num_experts = 8,
                                                      .directory_hash = 0x0123456789abcdef,
                                                      .shape_hash = 0xfedcba9876543210},
                                         .num_experts = 8,
                                         .experts_per_token = 2,
                                         .layers = {kLayer, kLayer}};
  static const moe::Hotness kUniform = moe::Hotness::Uniform(kShape);

  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto plan = moe::ParsePlanFile(text, "plan.json", kShape, kUniform);
  if (!plan) {
    ES_CHECK(plan.error().kind == base::ErrorKind::kCorruptModel);
    for (const char c : plan.error().message) ES_CHECK(c >= 0x20 && c < 0x7f);
    return 0;
  }
  const auto again = moe::ParsePlanFile(moe::PrintPlanFile(*plan), "plan.json", kShape, kUniform);
  ES_CHECK(again.has_value());
  ES_CHECK(std::ranges::equal(again->owners(), plan->owners()));
  ES_CHECK(std::ranges::equal(again->targets(), plan->targets()));
  return 0;
}
