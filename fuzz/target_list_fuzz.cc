// Target lists. What parses prints as a text that parses to the same value; what does not has a
// message of one printable line.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.h"
#include "moe/target/target_config.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view list(reinterpret_cast<const char*>(data), size);
  const auto config = moe::ExpertSplitTargetConfig::Parse(list);
  if (!config) {
    ES_CHECK(config.error().kind == base::ErrorKind::kInvalidInput);
    ES_CHECK(!config.error().message.empty());
    for (const char c : config.error().message) ES_CHECK(c >= 0x20 && c < 0x7f);
    return 0;
  }
  ES_CHECK((*config)[config->primary()].can_be_primary());
  const std::string printed = config->Print();
  const auto again = moe::ExpertSplitTargetConfig::Parse(printed);
  ES_CHECK(again.has_value());
  ES_CHECK(*again == *config);
  ES_CHECK(again->Print() == printed);
  return 0;
}
