// Requests in OpenAI's form: POST /v1/chat/completions and /v1/completions.
//
// Pure functions; any thread. Fields that change nothing here (user, store, metadata, service_tier
// and the like) and unknown ones are passed over, as other servers do; a field that would change
// the answer and is not supported is an error. Every error names the field. docs/http_api.md lists
// the fields.
#pragma once

#include "server/api_error.h"
#include "server/chat/chat_request.h"
#include "server/json.h"
#include "server/request_fields.h"

namespace server::openai {

inline constexpr std::size_t kMaxStopStrings = 16;
inline constexpr std::size_t kMaxChoices = 16;

// `body` is what ParseRequestBody gave.
ApiResult<ChatRequest> ParseChatRequest(const Json& body);
ApiResult<CompletionRequest> ParseCompletionRequest(const Json& body);

// The fields that both share, for the other protocols' use too where they have them.
void ReadSampling(const RequestFields& fields, GenerationOptions& options);

// One message of a conversation as a template takes it.
Json ReadMessage(const Json& message, const std::string& path, FirstError& error);
// Tools as clients send them, checked; an array.
Json ReadTools(const RequestFields& fields);

}  // namespace server::openai
