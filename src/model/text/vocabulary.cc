#include "model/text/vocabulary.h"

#include <llama.h>

#include <limits>
#include <mutex>
#include <utility>

#include "base/check.h"

namespace model {
namespace {

// libllama logs through one process-wide function; what matters comes back as an Error instead.
void SilenceLlama() {
  static std::once_flag once;
  std::call_once(once, [] { llama_log_set([](ggml_log_level, const char*, void*) {}, nullptr); });
}

struct ModelDeleter {
  void operator()(llama_model* model) const { llama_model_free(model); }
};

}  // namespace

struct Vocabulary::State {
  std::unique_ptr<llama_model, ModelDeleter> model;
  const llama_vocab* vocab = nullptr;
  std::string path;
};

Vocabulary::Vocabulary(std::unique_ptr<State> state) : state_(std::move(state)) {}
Vocabulary::Vocabulary(Vocabulary&&) noexcept = default;
Vocabulary& Vocabulary::operator=(Vocabulary&&) noexcept = default;
Vocabulary::~Vocabulary() = default;

base::Result<Vocabulary> Vocabulary::Load(const std::string& path) {
  SilenceLlama();
  llama_model_params params = llama_model_default_params();
  params.vocab_only = true;
  auto state = std::make_unique<State>();
  state->model.reset(llama_model_load_from_file(path.c_str(), params));
  if (!state->model) {
    return base::Fail(base::ErrorKind::kCorruptModel,
                      "'{}': libllama cannot load the tokeniser; convert the model again with a "
                      "tokeniser that it knows",
                      path);
  }
  state->vocab = llama_model_get_vocab(state->model.get());
  state->path = path;
  return Vocabulary(std::move(state));
}

std::size_t Vocabulary::size() const {
  return static_cast<std::size_t>(llama_vocab_n_tokens(state_->vocab));
}

bool Vocabulary::has_text() const {
  return llama_vocab_type(state_->vocab) != LLAMA_VOCAB_TYPE_NONE;
}

base::Result<std::vector<Token>> Vocabulary::Tokenize(std::string_view text,
                                                      bool add_special) const {
  if (!has_text()) {
    return base::Fail(base::ErrorKind::kCorruptModel,
                      "'{}' has no tokeniser, so it takes no text; convert the model again with "
                      "its tokeniser",
                      state_->path);
  }
  if (text.size() > static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max()) - 16) {
    return base::Fail(base::ErrorKind::kInvalidInput, "text of {} bytes is too long to tokenise",
                      text.size());
  }
  // A token stands for at least one byte, but for the few special ones in front.
  std::vector<Token> tokens(text.size() + 8);
  std::int32_t count =
      llama_tokenize(state_->vocab, text.data(), static_cast<std::int32_t>(text.size()),
                     tokens.data(), static_cast<std::int32_t>(tokens.size()), add_special,
                     /*parse_special=*/true);
  if (count < 0 && count != std::numeric_limits<std::int32_t>::min()) {
    tokens.resize(static_cast<std::size_t>(-count));
    count = llama_tokenize(state_->vocab, text.data(), static_cast<std::int32_t>(text.size()),
                           tokens.data(), static_cast<std::int32_t>(tokens.size()), add_special,
                           /*parse_special=*/true);
  }
  if (count < 0) {
    return base::Fail(base::ErrorKind::kInvalidInput, "text of {} bytes gives too many tokens",
                      text.size());
  }
  tokens.resize(static_cast<std::size_t>(count));
  return tokens;
}

std::string Vocabulary::Piece(Token token) const {
  if (!has_text() || token < 0 || static_cast<std::size_t>(token) >= size()) return {};
  std::string piece(32, '\0');
  std::int32_t count =
      llama_token_to_piece(state_->vocab, token, piece.data(),
                           static_cast<std::int32_t>(piece.size()), /*lstrip=*/0, /*special=*/true);
  if (count < 0) {
    piece.resize(static_cast<std::size_t>(-count));
    count = llama_token_to_piece(state_->vocab, token, piece.data(),
                                 static_cast<std::int32_t>(piece.size()), 0, true);
  }
  ES_CHECK(count >= 0);
  piece.resize(static_cast<std::size_t>(count));
  return piece;
}

std::string Vocabulary::Text(const std::vector<Token>& tokens) const {
  std::string text;
  for (const Token token : tokens) text += Piece(token);
  return text;
}

bool Vocabulary::IsEndOfGeneration(Token token) const {
  return has_text() && llama_vocab_is_eog(state_->vocab, token);
}

bool Vocabulary::adds_start_token() const { return llama_vocab_get_add_bos(state_->vocab); }

Token Vocabulary::start_token() const { return llama_vocab_bos(state_->vocab); }

const ::llama_vocab* Vocabulary::handle() const { return state_->vocab; }

}  // namespace model
