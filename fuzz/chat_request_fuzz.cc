// Request bodies of every protocol: whatever they hold, the answer is a value.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "server/anthropic/request.h"
#include "server/json.h"
#include "server/openai/request.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto body = server::ParseRequestBody({reinterpret_cast<const char*>(data), size});
  if (!body) {
    static_cast<void>(server::Dump(server::Json(body.error().message)));
    return 0;
  }
  static_cast<void>(server::openai::ParseChatRequest(*body));
  static_cast<void>(server::openai::ParseCompletionRequest(*body));
  static_cast<void>(server::anthropic::ParseMessagesRequest(*body));
  return 0;
}
