#include "support/golden_record.h"

#include <fstream>
#include <iterator>

#include "support/test_models.h"

namespace test {

std::vector<std::string> GoldenRecordNames() {
  return {"grouped_heads", "tied_interval_2", "demo"};
}

GoldenRecord ReadGoldenRecord(std::string_view name) {
  const std::string stem =
      std::string(EXPERT_SPLIT_SOURCE_DIR) + "/tests/golden/" + std::string(name);
  GoldenRecord record;
  record.model_path = name == "demo" ? ModelPath("demo-f32") : stem + ".gguf";
  std::ifstream tokens(stem + ".tokens");
  record.tokens.assign(std::istream_iterator<std::int32_t>(tokens), {});
  std::ifstream file(stem + ".logits.f32", std::ios::binary | std::ios::ate);
  const auto bytes = file ? static_cast<std::size_t>(file.tellg()) : 0;
  if (bytes == 0 || record.tokens.empty() || bytes % (record.tokens.size() * sizeof(float)) != 0) {
    return {};
  }
  record.logits.resize(bytes / sizeof(float));
  record.vocab = record.logits.size() / record.tokens.size();
  file.seekg(0);
  if (!file.read(reinterpret_cast<char*>(record.logits.data()),
                 static_cast<std::streamsize>(bytes))) {
    return {};
  }
  return record;
}

}  // namespace test
