// Requests in Anthropic's form: POST /v1/messages and /v1/messages/count_tokens.
//
// They become the same ChatRequest that OpenAI's become. Pure functions; any thread. Every error
// names the field. docs/http_api.md lists the fields.
#pragma once

#include "server/api_error.h"
#include "server/chat/chat_request.h"
#include "server/json.h"

namespace server::anthropic {

// `body` is what ParseRequestBody gave. `counting`: max_tokens may be missing.
ApiResult<ChatRequest> ParseMessagesRequest(const Json& body, bool counting = false);

}  // namespace server::anthropic
