// GBNF grammars: accepted, or refused with one line.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "model/text/grammar_syntax.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto checked = model::CheckGrammar({reinterpret_cast<const char*>(data), size});
  if (checked) return 0;
  ES_CHECK(checked.error().kind == base::ErrorKind::kInvalidInput);
  for (const char c : checked.error().message) ES_CHECK(c >= 0x20 && c < 0x7f);
  return 0;
}
