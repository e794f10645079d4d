// Replies of a model, cut anywhere: the parts are UTF-8 and hold no stop string.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "base/utf8.h"
#include "server/chat/reply.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::size_t step = data[0] % 16 + 1;
  const std::string text(reinterpret_cast<const char*>(data + 1), size - 1);
  server::Reply reply({.form = {.starts_in_reasoning = data[0] % 32 == 0, .tool_calls = true},
                       .stop = {"STOP"},
                       .logprobs = true});
  for (std::size_t i = 0; i < text.size(); i += step) {
    reply.Feed({.token = 1, .piece = text.substr(i, step)});
  }
  reply.Finish(engine::FinishReason::kEnd);
  if (base::FindNonUtf8(reply.content()) || base::FindNonUtf8(reply.reasoning())) std::abort();
  for (const server::ToolCall& call : reply.calls()) {
    if (base::FindNonUtf8(call.arguments)) std::abort();
  }
  return 0;
}
