// Log probabilities of tokens in OpenAI's two forms. Pure functions; any thread.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>

#include "engine/engine.h"
#include "server/json.h"

namespace server::openai {

// Bytes of a token.
using PieceOf = std::function<std::string(model::Token)>;

// Of /v1/chat/completions: {"content": [{token, logprob, bytes, top_logprobs}], "refusal": null}.
Json ChatLogprobs(std::span<const engine::GeneratedToken> tokens, const PieceOf& piece);

// Of /v1/completions: {tokens, token_logprobs, top_logprobs, text_offset}. `offset` is where the
// first token's text begins; afterwards it is that of the next.
Json CompletionLogprobs(std::span<const engine::GeneratedToken> tokens, const PieceOf& piece,
                        std::size_t& offset);

}  // namespace server::openai
