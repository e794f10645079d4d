// From a conversation to a prompt, and what to expect of the reply.
//
// Pure but for the tokeniser; any thread.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/result.h"
#include "model/text/chat_template.h"
#include "model/text/vocabulary.h"
#include "server/api_error.h"
#include "server/chat/chat_request.h"
#include "server/chat/reply_parser.h"

namespace server {

struct ChatPrompt {
  std::string text;
  std::vector<model::Token> tokens;
  // Ends of messages, as engine::GenerationRequest::boundaries.
  std::vector<std::size_t> boundaries;
  ReplyForm form;
};

// Errors: 400 with param "messages" when the template refuses.
ApiResult<ChatPrompt> MakePrompt(const ChatRequest& request, const model::ChatTemplate& chat,
                                 const model::Vocabulary& vocabulary);

// Ends of messages in a prompt: behind each token that ends a generation, as models close every
// turn with theirs.
std::vector<std::size_t> MessageBoundaries(const std::vector<model::Token>& tokens,
                                           const model::Vocabulary& vocabulary);

// For templates that know no tools: the tools as text in front of the system message, calls as the
// text that a model writes, results as messages of the user.
Json WithToolsAsText(const Json& messages, const Json& tools);

// The grammar that the reply must match, as GBNF; empty when it is free. `to_grammar` converts a
// JSON schema. Errors: 400 with the request's field for a schema that it does not take.
using SchemaToGrammar = std::function<base::Result<std::string>(const Json& schema)>;
ApiResult<std::string> MakeGrammar(const OutputFormat& format, const SchemaToGrammar& to_grammar);
// The same for a chat: also a call of a tool that it must make.
ApiResult<std::string> MakeGrammar(const ChatRequest& request, const SchemaToGrammar& to_grammar);

}  // namespace server
