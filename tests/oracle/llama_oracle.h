// libllama as the reference for a forward pass: the same file, tokens and chunks, its logits.
//
// Settings under which libllama's result does not depend on how a prompt is cut into chunks (bit
// for bit for F32, F16 and Q8_0 weights): CPU only, no flash attention, no repacked weights, no
// operation offloaded to a device. One object, one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "llama-cpp.h"

namespace oracle {

struct LlamaOracleOptions {
  int num_threads = 1;     // more are slower on small models and busy machines
  int max_tokens = 1024;   // context length, and the largest chunk
  bool kv_in_f32 = false;  // keys and values cached as F32; otherwise F16, llama.cpp's default
};

// The value of one node of libllama's graph.
struct CapturedTensor {
  std::vector<std::int64_t> shape;  // [outer, ..., inner], outer dimensions of 1 dropped
  std::vector<float> values;        // 32-bit integers (expert ids) are converted
};

class LlamaOracle {
 public:
  // Errors: kCorruptModel, with libllama's own reason.
  static base::Result<LlamaOracle> Load(const std::string& path,
                                        const LlamaOracleOptions& options = {});

  int vocab_size() const;

  // The text's ids: special tokens are parsed, none is added. Errors: kInvalidInput.
  base::Result<std::vector<std::int32_t>> Tokenize(std::string_view text) const;

  // The logits [tokens, vocab] of one sequence from an empty state, evaluated `chunk` tokens at a
  // time (0: all at once). Errors: kInvalidInput for no token, more than max_tokens or an id
  // outside the vocabulary; kInternal when libllama fails.
  base::Result<std::vector<float>> Logits(std::span<const std::int32_t> tokens,
                                          std::size_t chunk = 0) const;

  // `count` tokens, each the most likely after those before it (the lowest id of equals), after
  // `tokens` in one chunk. End-of-generation tokens do not stop it. Errors as Logits.
  base::Result<std::vector<std::int32_t>> Greedy(std::span<const std::int32_t> tokens,
                                                 std::size_t count) const;

  // What the graph nodes called `names` (for example "ffn_moe_topk-2", "l_out-0") hold when
  // `tokens` are evaluated in one batch. Names that the graph lacks are absent from the map.
  // Logits may then differ in the last bits from those of Logits. Errors as Logits.
  base::Result<std::map<std::string, CapturedTensor>> Capture(
      std::span<const std::int32_t> tokens, std::span<const std::string> names) const;

 private:
  LlamaOracle() = default;

  base::Result<llama_context_ptr> MakeContext(llama_context_params params) const;
  llama_context_params ContextParams() const;
  base::Result<void> CheckTokens(std::span<const std::int32_t> tokens) const;

  LlamaOracleOptions options_;
  llama_model_ptr model_;
};

}  // namespace oracle
