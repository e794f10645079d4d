// Routing profile files. What reads prints as a file that reads as the same profile; what does not
// has a message of one printable line.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.h"
#include "moe/profile/profile_file.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto profile = moe::ParseProfileFile(text, "profile.json");
  if (!profile) {
    ES_CHECK(profile.error().kind == base::ErrorKind::kCorruptModel);
    for (const char c : profile.error().message) ES_CHECK(c >= 0x20 && c < 0x7f);
    return 0;
  }
  const auto again = moe::ParseProfileFile(moe::PrintProfileFile(*profile), "profile.json");
  ES_CHECK(again.has_value());
  ES_CHECK(again->model() == profile->model());
  ES_CHECK(again->counts() == profile->counts());
  ES_CHECK(again->num_tokens() == profile->num_tokens());
  ES_CHECK(again->text() == profile->text());
  return 0;
}
