#include "oracle/llama_oracle.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include "ggml-backend.h"

namespace oracle {
namespace {

using base::ErrorKind;
using base::Fail;

std::mutex last_error_mutex;
std::string last_error;  // libllama's latest complaint, on one line

void KeepErrors(ggml_log_level level, const char* text, void* /*user_data*/) {
  if (level != GGML_LOG_LEVEL_ERROR) return;
  std::scoped_lock lock(last_error_mutex);
  last_error = text;
  std::ranges::replace(last_error, '\n', ' ');
}

std::string LastError() {
  std::scoped_lock lock(last_error_mutex);
  return last_error.empty() ? "no reason given" : last_error;
}

void StartLibrary() {
  static std::once_flag once;
  std::call_once(once, [] {
    llama_log_set(KeepErrors, nullptr);
    if (ggml_backend_reg_count() == 0) ggml_backend_load_all();
    llama_backend_init();
  });
}

// Evaluates `tokens` at positions from `first` on; logits of all of them, or of the last alone.
base::Result<void> Decode(llama_context* context, std::span<const std::int32_t> tokens,
                          std::size_t first, bool all_logits) {
  llama_batch batch = llama_batch_init(static_cast<std::int32_t>(tokens.size()), 0, 1);
  batch.n_tokens = static_cast<std::int32_t>(tokens.size());
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    batch.token[i] = tokens[i];
    batch.pos[i] = static_cast<llama_pos>(first + i);
    batch.n_seq_id[i] = 1;
    batch.seq_id[i][0] = 0;
    batch.logits[i] = all_logits || i + 1 == tokens.size();
  }
  const int status = llama_decode(context, batch);
  llama_batch_free(batch);
  if (status != 0) return Fail(ErrorKind::kInternal, "llama_decode: {}, {}", status, LastError());
  return {};
}

struct CaptureRequest {
  std::span<const std::string> names;
  std::map<std::string, CapturedTensor>* captured;
};

CapturedTensor Read(const ggml_tensor* tensor) {
  CapturedTensor result;
  for (int i = ggml_n_dims(tensor) - 1; i >= 0; --i) result.shape.push_back(tensor->ne[i]);
  std::vector<std::byte> raw(ggml_nbytes(tensor));
  ggml_backend_tensor_get(tensor, raw.data(), 0, raw.size());
  for (std::int64_t i = 0; i < ggml_nelements(tensor); ++i) {
    std::int64_t index = i;
    std::size_t offset = 0;  // the tensor may be a view
    for (int dim = 0; dim < GGML_MAX_DIMS; ++dim) {
      offset += static_cast<std::size_t>(index % tensor->ne[dim]) * tensor->nb[dim];
      index /= tensor->ne[dim];
    }
    const void* at = raw.data() + offset;
    result.values.push_back(tensor->type == GGML_TYPE_I32
                                ? static_cast<float>(*static_cast<const std::int32_t*>(at))
                                : *static_cast<const float*>(at));
  }
  return result;
}

bool OnNode(ggml_tensor* tensor, bool ask, void* user_data) {
  auto* request = static_cast<CaptureRequest*>(user_data);
  const bool wanted = std::ranges::contains(request->names, std::string_view(tensor->name)) &&
                      (tensor->type == GGML_TYPE_F32 || tensor->type == GGML_TYPE_I32);
  if (ask || !wanted) return ask ? wanted : true;
  request->captured->insert_or_assign(tensor->name, Read(tensor));
  return true;
}

}  // namespace

base::Result<LlamaOracle> LlamaOracle::Load(const std::string& path,
                                            const LlamaOracleOptions& options) {
  StartLibrary();
  static ggml_backend_dev_t no_devices[] = {nullptr};
  llama_model_params params = llama_model_default_params();
  params.devices = no_devices;
  params.n_gpu_layers = 0;
  params.use_extra_bufts = false;
  LlamaOracle result;
  result.options_ = options;
  result.model_.reset(llama_model_load_from_file(path.c_str(), params));
  if (!result.model_) {
    return Fail(ErrorKind::kCorruptModel, "libllama cannot load {}: {}", path, LastError());
  }
  return result;
}

int LlamaOracle::vocab_size() const {
  return llama_vocab_n_tokens(llama_model_get_vocab(model_.get()));
}

base::Result<std::vector<std::int32_t>> LlamaOracle::Tokenize(std::string_view text) const {
  const llama_vocab* vocab = llama_model_get_vocab(model_.get());
  const auto length = static_cast<std::int32_t>(text.size());
  std::vector<std::int32_t> tokens(text.size() + 8);
  const int count = llama_tokenize(vocab, text.data(), length, tokens.data(),
                                   static_cast<std::int32_t>(tokens.size()),
                                   /*add_special=*/false, /*parse_special=*/true);
  if (count < 0) {
    return Fail(ErrorKind::kInvalidInput, "libllama cannot tokenize {} bytes of text", length);
  }
  tokens.resize(static_cast<std::size_t>(count));
  return tokens;
}

llama_context_params LlamaOracle::ContextParams() const {
  llama_context_params params = llama_context_default_params();
  const auto size = static_cast<std::uint32_t>(options_.max_tokens);
  params.n_ctx = size;
  params.n_batch = size;
  params.n_ubatch = size;
  params.n_seq_max = 1;
  params.n_threads = options_.num_threads;
  params.n_threads_batch = options_.num_threads;
  params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
  params.op_offload = false;
  params.offload_kqv = false;
  params.no_perf = true;
  if (options_.kv_in_f32) params.type_k = params.type_v = GGML_TYPE_F32;
  return params;
}

base::Result<llama_context_ptr> LlamaOracle::MakeContext(llama_context_params params) const {
  llama_context_ptr context(llama_init_from_model(model_.get(), params));
  if (!context) return Fail(ErrorKind::kInternal, "libllama has no context: {}", LastError());
  return context;
}

base::Result<void> LlamaOracle::CheckTokens(std::span<const std::int32_t> tokens) const {
  if (tokens.empty()) return Fail(ErrorKind::kInvalidInput, "no tokens to evaluate");
  if (tokens.size() > static_cast<std::size_t>(options_.max_tokens)) {
    return Fail(ErrorKind::kInvalidInput, "{} tokens, but max_tokens is {}", tokens.size(),
                options_.max_tokens);
  }
  for (const std::int32_t token : tokens) {
    if (token < 0 || token >= vocab_size()) {
      return Fail(ErrorKind::kInvalidInput, "token {} is not in the vocabulary of {}", token,
                  vocab_size());
    }
  }
  return {};
}

base::Result<std::vector<float>> LlamaOracle::Logits(std::span<const std::int32_t> tokens,
                                                     std::size_t chunk) const {
  if (auto valid = CheckTokens(tokens); !valid) return Forward(valid);
  auto context = MakeContext(ContextParams());
  if (!context) return Forward(context);
  const auto width = static_cast<std::size_t>(vocab_size());
  if (chunk == 0) chunk = tokens.size();
  std::vector<float> logits;
  logits.reserve(tokens.size() * width);
  for (std::size_t first = 0; first < tokens.size(); first += chunk) {
    const std::size_t count = std::min(chunk, tokens.size() - first);
    auto done = Decode(context->get(), tokens.subspan(first, count), first, true);
    if (!done) return Forward(done);
    const float* rows = llama_get_logits(context->get());
    logits.insert(logits.end(), rows, rows + count * width);
  }
  return logits;
}

base::Result<std::vector<std::int32_t>> LlamaOracle::Greedy(std::span<const std::int32_t> tokens,
                                                            std::size_t count) const {
  std::vector<std::int32_t> all(tokens.begin(), tokens.end());
  if (auto valid = CheckTokens(tokens); !valid) return Forward(valid);
  if (tokens.size() + count > static_cast<std::size_t>(options_.max_tokens)) {
    return Fail(ErrorKind::kInvalidInput, "{} tokens and {} more, but max_tokens is {}",
                tokens.size(), count, options_.max_tokens);
  }
  auto context = MakeContext(ContextParams());
  if (!context) return Forward(context);
  std::size_t first = 0;
  while (all.size() < tokens.size() + count) {
    auto done = Decode(context->get(), std::span(all).subspan(first), first, false);
    if (!done) return Forward(done);
    const float* row = llama_get_logits_ith(context->get(), -1);
    first = all.size();
    all.push_back(static_cast<std::int32_t>(std::max_element(row, row + vocab_size()) - row));
  }
  all.erase(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(tokens.size()));
  return all;
}

base::Result<std::map<std::string, CapturedTensor>> LlamaOracle::Capture(
    std::span<const std::int32_t> tokens, std::span<const std::string> names) const {
  if (auto valid = CheckTokens(tokens); !valid) return Forward(valid);
  std::map<std::string, CapturedTensor> captured;
  CaptureRequest request{names, &captured};
  llama_context_params params = ContextParams();
  params.cb_eval = OnNode;
  params.cb_eval_user_data = &request;
  auto context = MakeContext(params);
  if (!context) return Forward(context);
  auto done = Decode(context->get(), tokens, 0, true);
  if (!done) return Forward(done);
  return captured;
}

}  // namespace oracle
