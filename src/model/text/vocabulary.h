// The model's tokeniser, through libllama.
//
// Loads only the vocabulary of the model file. Immutable after Load; any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

struct llama_vocab;

namespace model {

using Token = std::int32_t;

class Vocabulary {
 public:
  // `path` is the model file (a split model: its first shard), already checked by gg::GgufFile.
  // Errors: kCorruptModel, naming the file, when libllama cannot use its tokeniser.
  static base::Result<Vocabulary> Load(const std::string& path);

  Vocabulary(Vocabulary&&) noexcept;
  Vocabulary& operator=(Vocabulary&&) noexcept;
  ~Vocabulary();

  std::size_t size() const;
  // False for a model whose file has no tokeniser; Tokenize then fails.
  bool has_text() const;

  // Text to tokens. `add_special`: begin with the model's own start token where it asks for one.
  // Special tokens in the text are parsed. Errors: kCorruptModel for a model without a tokeniser,
  // kInvalidInput for text over 2^31 - 1 bytes or tokens.
  base::Result<std::vector<Token>> Tokenize(std::string_view text, bool add_special) const;

  // The token's bytes, special tokens included; may be a part of a UTF-8 sequence.
  std::string Piece(Token token) const;
  // The bytes of all tokens in a row.
  std::string Text(const std::vector<Token>& tokens) const;

  bool IsEndOfGeneration(Token token) const;
  // Whether chunks of text begin with the start token, and which it is (-1: none).
  bool adds_start_token() const;
  Token start_token() const;

  // For model/text alone.
  const ::llama_vocab* handle() const;

 private:
  struct State;
  explicit Vocabulary(std::unique_ptr<State> state);

  std::unique_ptr<State> state_;
};

}  // namespace model
