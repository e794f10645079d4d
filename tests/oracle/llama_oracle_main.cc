// llama_oracle: libllama's logits of a token list, for scripts and for looking by hand.
//
//   llama_oracle --model M.gguf --prompt "Once" -n 16
//   llama_oracle --model M.gguf --tokens ids.txt --chunk 7 --out logits.f32
//   llama_oracle --model M.gguf --prompt "Once" --capture ffn_moe_topk-0
//
// Prints one JSON document: the vocabulary's size, the tokens evaluated, the continuation and what
// was captured, {name: {shape, values}}. --out gets the logits as little-endian float32 [tokens,
// vocab]. Exit status: 0, 2 for the command line, 3 for the rest.
#include <CLI/CLI.hpp>
#include <cstdint>
#include <fstream>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "oracle/llama_oracle.h"

namespace {

struct Arguments {
  std::string model, tokens_file, text_file, prompt, out;
  std::size_t chunk = 0, count = 0;
  std::vector<std::string> capture;
  oracle::LlamaOracleOptions options;
};

int Complain(const std::string& message) {
  std::cerr << "llama_oracle: " << message << "\n";
  return 3;
}

base::Result<std::vector<std::int32_t>> ReadTokens(const Arguments& arguments,
                                                   const oracle::LlamaOracle& model) {
  const std::string& path =
      arguments.tokens_file.empty() ? arguments.text_file : arguments.tokens_file;
  if (path.empty()) return model.Tokenize(arguments.prompt);
  std::ifstream file(path, std::ios::binary);
  if (!file) return base::Fail(base::ErrorKind::kIo, "cannot read {}", path);
  if (arguments.tokens_file.empty()) {
    return model.Tokenize(std::string(std::istreambuf_iterator<char>(file), {}));
  }
  std::vector<std::int32_t> tokens{std::istream_iterator<std::int32_t>(file), {}};
  if (!file.eof()) return base::Fail(base::ErrorKind::kIo, "{}: not a list of token ids", path);
  return tokens;
}

int Run(const Arguments& arguments) {
  auto model = oracle::LlamaOracle::Load(arguments.model, arguments.options);
  if (!model) return Complain(model.error().message);
  auto tokens = ReadTokens(arguments, *model);
  if (!tokens) return Complain(tokens.error().message);
  nlohmann::json report = {{"vocab", model->vocab_size()}, {"tokens", *tokens}};
  if (!arguments.out.empty()) {
    auto logits = model->Logits(*tokens, arguments.chunk);
    if (!logits) return Complain(logits.error().message);
    std::ofstream file(arguments.out, std::ios::binary);
    file.write(reinterpret_cast<const char*>(logits->data()),
               static_cast<std::streamsize>(logits->size() * sizeof(float)));
    if (!file.flush()) return Complain("cannot write " + arguments.out);
  }
  if (arguments.count > 0) {
    auto continuation = model->Greedy(*tokens, arguments.count);
    if (!continuation) return Complain(continuation.error().message);
    report["continuation"] = *continuation;
  }
  if (!arguments.capture.empty()) {
    auto captured = model->Capture(*tokens, arguments.capture);
    if (!captured) return Complain(captured.error().message);
    for (const auto& [name, tensor] : *captured) {
      report["captured"][name] = {{"shape", tensor.shape}, {"values", tensor.values}};
    }
  }
  std::cout << report.dump() << "\n";
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Arguments arguments;
  CLI::App app("libllama's logits of a token list");
  app.add_option("--model", arguments.model, "GGUF file")->required();
  auto* input = app.add_option_group("input")->require_option(1);
  input->add_option("--tokens", arguments.tokens_file, "file of token ids, separated by blanks");
  input->add_option("--text", arguments.text_file, "text file");
  input->add_option("--prompt", arguments.prompt, "text");
  app.add_option("--chunk", arguments.chunk, "tokens evaluated at a time (0: all)");
  app.add_option("--out", arguments.out, "file for the logits, float32 [tokens, vocab]");
  app.add_option("-n", arguments.count, "greedy continuation of this many tokens");
  app.add_option("--capture", arguments.capture, "nodes of the graph, for example l_out-0");
  app.add_option("--threads", arguments.options.num_threads, "threads")->capture_default_str();
  app.add_option("--max-tokens", arguments.options.max_tokens, "context")->capture_default_str();
  app.add_flag("--kv-f32", arguments.options.kv_in_f32, "cache keys and values as F32");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  return Run(arguments);
}
