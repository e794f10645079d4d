// Answers in OpenAI's form. Pure; any thread.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "server/chat/reply_format.h"

namespace server::openai {

// POST /v1/chat/completions: "chat.completion" and "chat.completion.chunk".
std::unique_ptr<ReplyFormat> MakeChatFormat(ReplyHead head, bool logprobs);

// POST /v1/completions: "text_completion". `echo`, one a prompt, stands in front of the text of
// every `choices_per_prompt` choices; empty for none.
std::unique_ptr<ReplyFormat> MakeCompletionFormat(ReplyHead head, bool logprobs,
                                                  std::vector<std::string> echo,
                                                  std::size_t choices_per_prompt);

// {"error": {"message", "type", "param", "code"}}
Json ErrorBody(const ApiError& error);

// One event, "data: ...\n\n".
std::string Event(const Json& data);
inline constexpr std::string_view kDone = "data: [DONE]\n\n";

}  // namespace server::openai
