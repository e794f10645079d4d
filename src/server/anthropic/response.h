// Answers in Anthropic's form. Pure; any thread.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "server/chat/reply_format.h"

namespace server::anthropic {

// POST /v1/messages: a "message", or the events message_start, content_block_start, _delta, _stop,
// message_delta, message_stop. One choice.
std::unique_ptr<ReplyFormat> MakeMessagesFormat(ReplyHead head);

// {"type": "error", "error": {"type", "message"}}; the field at fault stands in the message.
Json ErrorBody(const ApiError& error);

}  // namespace server::anthropic
