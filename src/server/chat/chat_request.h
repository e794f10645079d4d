// What a client wants, in words that are no protocol's own. Plain values.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "model/text/sampler.h"
#include "server/json.h"

namespace server {

// What every endpoint that generates takes.
struct GenerationOptions {
  std::string model;                      // as the client names it; empty: whichever there is
  std::optional<std::size_t> max_tokens;  // absent: as the context allows
  model::SamplingSettings sampling;       // without grammar and, unless given, without seed
  std::optional<std::uint32_t> seed;      // absent: another one each time
  std::vector<std::string> stop;
  std::size_t choices = 1;
  bool logprobs = false;
  std::size_t top_logprobs = 0;
  bool ignore_end = false;
  bool stream = false;
  bool stream_usage = false;
  std::chrono::milliseconds timeout{0};  // 0: none
};

struct ToolChoice {
  enum class Kind {
    kAuto,      // the model may call
    kNone,      // it may not, and is shown no tools
    kRequired,  // it must call one of them
    kFunction,  // it must call `name`
  };
  Kind kind = Kind::kAuto;
  std::string name;
};

struct OutputFormat {
  enum class Kind { kText, kJson, kJsonSchema, kGrammar };
  Kind kind = Kind::kText;
  Json schema;          // of kJsonSchema
  std::string grammar;  // of kGrammar: GBNF
  std::string param;    // the request's field, for errors
};

struct ChatRequest {
  GenerationOptions options;
  // As templates take them (model/text/chat_template.h): content joined to one string, arguments of
  // tool calls parsed.
  Json messages = Json::array();
  Json tools = Json::array();  // OpenAI's form
  ToolChoice tool_choice;
  bool parallel_tool_calls = true;
  OutputFormat format;
  Json template_variables = Json::object();
  bool separate_reasoning = true;
  // Whether the last message, an assistant's, is to be gone on with.
  bool continue_last = false;
};

struct CompletionRequest {
  GenerationOptions options;
  std::vector<std::string> prompts;  // one of the two is empty
  std::vector<std::vector<std::int32_t>> token_prompts;
  bool echo = false;
  OutputFormat format;
};

}  // namespace server
