#include "server/openai/logprobs.h"

#include <algorithm>
#include <utility>

namespace server::openai {
namespace {

// JSON has no infinity; OpenAI writes this for tokens that cannot come.
constexpr float kImpossible = -9999.0F;

double Logprob(float value) { return static_cast<double>(std::max(value, kImpossible)); }

Json TokenJson(const std::string& piece, float logprob) {
  Json bytes = Json::array();
  for (const char c : piece) bytes.push_back(static_cast<unsigned char>(c));
  return {{"token", piece}, {"logprob", Logprob(logprob)}, {"bytes", std::move(bytes)}};
}

}  // namespace

Json ChatLogprobs(std::span<const engine::GeneratedToken> tokens, const PieceOf& piece) {
  Json content = Json::array();
  for (const engine::GeneratedToken& token : tokens) {
    Json entry = TokenJson(token.piece, token.log_probability);
    entry["top_logprobs"] = Json::array();
    for (const model::TokenProbability& other : token.top) {
      entry["top_logprobs"].push_back(TokenJson(piece(other.token), other.log_probability));
    }
    content.push_back(std::move(entry));
  }
  return {{"content", std::move(content)}, {"refusal", nullptr}};
}

Json CompletionLogprobs(std::span<const engine::GeneratedToken> tokens, const PieceOf& piece,
                        std::size_t& offset) {
  Json texts = Json::array();
  Json logprobs = Json::array();
  Json tops = Json::array();
  Json offsets = Json::array();
  for (const engine::GeneratedToken& token : tokens) {
    texts.push_back(token.piece);
    logprobs.push_back(Logprob(token.log_probability));
    Json top = Json::object();
    for (const model::TokenProbability& other : token.top) {
      top[piece(other.token)] = Logprob(other.log_probability);
    }
    tops.push_back(std::move(top));
    offsets.push_back(offset);
    offset += token.piece.size();
  }
  return {{"tokens", std::move(texts)},
          {"token_logprobs", std::move(logprobs)},
          {"top_logprobs", std::move(tops)},
          {"text_offset", std::move(offsets)}};
}

}  // namespace server::openai
