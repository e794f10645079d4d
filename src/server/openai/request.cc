#include "server/openai/request.h"

#include <limits>
#include <set>
#include <utility>

namespace server::openai {
namespace {

constexpr std::int64_t kMaxTokens = 1 << 24;
constexpr std::int64_t kMaxTimeoutMs = 24 * 3600 * 1000;
constexpr std::int64_t kMaxTokenId = std::numeric_limits<std::int32_t>::max();
constexpr double kAnything = 1e6;

void ReadStop(const RequestFields& fields, GenerationOptions& options) {
  const Json* stop = fields.Any("stop");
  if (stop == nullptr) return;
  if (stop->is_string()) {
    options.stop = {stop->get<std::string>()};
    return;
  }
  const Json* list = stop->is_array() ? stop : nullptr;
  if (list == nullptr || list->size() > kMaxStopStrings) {
    fields.error().Set("stop", "'stop' must be a string or an array of at most {} strings",
                       kMaxStopStrings);
    return;
  }
  for (std::size_t i = 0; i < list->size(); ++i) {
    if (!(*list)[i].is_string()) {
      fields.error().Set(ElementPath("stop", i), "'stop[{}]' is {}; it must be a string", i,
                         KindOf((*list)[i]));
      return;
    }
    options.stop.push_back((*list)[i].get<std::string>());
  }
}

// {"token id": bias}
void ReadLogitBias(const RequestFields& fields, GenerationOptions& options) {
  const Json* bias = fields.Object("logit_bias");
  if (bias == nullptr) return;
  const RequestFields biases(*bias, "logit_bias", fields.error());
  for (const auto& [key, value] : bias->items()) {
    const Json token = ParseOrDiscard(key);
    if (!token.is_number_unsigned() || token.get<std::uint64_t>() > std::uint64_t{kMaxTokenId}) {
      fields.error().Set("logit_bias." + key, "'logit_bias' has the key '{}', which is no token id",
                         key);
      return;
    }
    const auto number = biases.Number(key, -100, 100);
    if (!number) return;
    // The ends of the scale forbid a token, or allow nothing else.
    const float infinity = std::numeric_limits<float>::infinity();
    options.sampling.logit_bias.push_back(
        {token.get<std::int32_t>(), *number <= -100 ? -infinity : static_cast<float>(*number)});
  }
}

void ReadFloat(const RequestFields& fields, std::string_view name, double least, double greatest,
               float& setting) {
  if (const auto value = fields.Number(name, least, greatest)) {
    setting = static_cast<float>(*value);
  }
}

void ReadInt(const RequestFields& fields, std::string_view name, std::int64_t least,
             std::int64_t greatest, std::int32_t& setting) {
  if (const auto value = fields.Integer(name, least, greatest)) {
    setting = static_cast<std::int32_t>(*value);
  }
}

void ReadDry(const RequestFields& fields, model::SamplingSettings& sampling) {
  ReadFloat(fields, "dry_multiplier", 0, 100, sampling.dry_multiplier);
  ReadFloat(fields, "dry_base", 1, 100, sampling.dry_base);
  ReadInt(fields, "dry_allowed_length", 0, 1 << 15, sampling.dry_allowed_length);
  ReadInt(fields, "dry_penalty_last_n", -1, model::kMaxLastTokens, sampling.dry_last_n);
  const Json* breakers = fields.Array("dry_sequence_breakers");
  if (breakers == nullptr) return;
  sampling.dry_breakers.clear();
  for (std::size_t i = 0; i < breakers->size(); ++i) {
    if (!(*breakers)[i].is_string()) {
      fields.error().Set(ElementPath("dry_sequence_breakers", i),
                         "'dry_sequence_breakers[{}]' must be a string", i);
      return;
    }
    sampling.dry_breakers.push_back((*breakers)[i].get<std::string>());
  }
}

void ReadStreaming(const RequestFields& fields, GenerationOptions& options) {
  options.stream = fields.Boolean("stream").value_or(false);
  if (const Json* stream = fields.Object("stream_options")) {
    const RequestFields inside(*stream, "stream_options", fields.error());
    options.stream_usage = inside.Boolean("include_usage").value_or(false);
  }
}

// The fields of both endpoints.
void ReadOptions(const RequestFields& fields, GenerationOptions& options) {
  options.model = fields.String("model").value_or("");
  if (const auto count = fields.Integer("max_tokens", 1, kMaxTokens)) {
    options.max_tokens = static_cast<std::size_t>(*count);
  }
  if (const auto count = fields.Integer("n", 1, kMaxChoices)) {
    options.choices = static_cast<std::size_t>(*count);
  }
  ReadSampling(fields, options);
  ReadStop(fields, options);
  ReadStreaming(fields, options);
  options.ignore_end = fields.Boolean("ignore_eos").value_or(false);
  if (const auto limit = fields.Integer("timeout_ms", 0, kMaxTimeoutMs)) {
    options.timeout = std::chrono::milliseconds(*limit);
  }
}

// Text of a message: a string, or parts of type "text".
std::string ReadContent(const Json& content, const std::string& path, FirstError& error) {
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) {
    error.Set(path, "'{}' is {}; it must be a string or an array of parts", path, KindOf(content));
    return {};
  }
  std::string text;
  for (std::size_t i = 0; i < content.size(); ++i) {
    const RequestFields part(content[i], ElementPath(path, i), error);
    const std::string type = part.String("type").value_or("");
    if (type == "text" || type == "refusal") {
      part.Require(type);
      text += part.String(type).value_or("");
    } else {
      error.Set(part.PathOf("type"), "'{}' is \"{}\"; the model takes parts of type \"text\" only",
                part.PathOf("type"), type);
    }
  }
  return text;
}

// An assistant's earlier calls; templates take their arguments as objects.
Json ReadToolCalls(const Json& calls, const std::string& path, FirstError& error) {
  Json read = Json::array();
  for (std::size_t i = 0; i < calls.size(); ++i) {
    const RequestFields call(calls[i], ElementPath(path, i), error);
    const Json* function = call.Object("function");
    call.Require("function");
    if (function == nullptr) return read;
    const RequestFields inside(*function, call.PathOf("function"), error);
    inside.Require("name");
    Json arguments = Json::object();
    if (const Json* given = inside.Any("arguments")) {
      arguments = given->is_string() ? ParseOrDiscard(given->get<std::string>()) : *given;
      if (given->is_string() && given->get<std::string>().empty()) arguments = Json::object();
      if (!arguments.is_object()) {
        error.Set(inside.PathOf("arguments"), "'{}' must hold a JSON object",
                  inside.PathOf("arguments"));
      }
    }
    read.push_back(
        {{"id", call.String("id").value_or("")},
         {"type", "function"},
         {"function",
          {{"name", inside.String("name").value_or("")}, {"arguments", std::move(arguments)}}}});
  }
  return read;
}

void ReadToolChoice(const RequestFields& fields, ChatRequest& request) {
  const Json* choice = fields.Any("tool_choice");
  if (choice == nullptr) return;
  ToolChoice& read = request.tool_choice;
  if (choice->is_string()) {
    const auto word = choice->get<std::string>();
    if (word == "none") {
      read.kind = ToolChoice::Kind::kNone;
    } else if (word == "required") {
      read.kind = ToolChoice::Kind::kRequired;
    } else if (word != "auto") {
      fields.error().Set("tool_choice",
                         "'tool_choice' is \"{}\"; it must be \"none\", \"auto\", \"required\" or "
                         "an object that names a function",
                         word);
    }
  } else {
    const RequestFields inside(*choice, "tool_choice", fields.error());
    inside.Require("function");
    if (const Json* function = inside.Object("function")) {
      const RequestFields named(*function, "tool_choice.function", fields.error());
      named.Require("name");
      read.kind = ToolChoice::Kind::kFunction;
      read.name = named.String("name").value_or("");
    }
  }
  if (read.kind == ToolChoice::Kind::kAuto || read.kind == ToolChoice::Kind::kNone) return;
  for (const Json& tool : request.tools) {
    if (read.kind == ToolChoice::Kind::kRequired || tool["function"]["name"] == read.name) return;
  }
  fields.error().Set("tool_choice", "'tool_choice' asks for a function that 'tools' does not have");
}

void ReadFormat(const RequestFields& fields, OutputFormat& format) {
  if (const auto grammar = fields.String("grammar"); grammar && !grammar->empty()) {
    format = {OutputFormat::Kind::kGrammar, {}, *grammar, "grammar"};
  }
  const Json* wanted = fields.Object("response_format");
  if (wanted == nullptr) return;
  const RequestFields inside(*wanted, "response_format", fields.error());
  inside.Require("type");
  const std::string type = inside.String("type").value_or("text");
  if (type == "text") return;
  if (format.kind == OutputFormat::Kind::kGrammar) {
    fields.error().Set("grammar", "'grammar' and 'response_format' exclude each other");
  }
  if (type == "json_object") {
    format = {OutputFormat::Kind::kJson, {}, "", "response_format"};
    // llama.cpp's form, with the schema right beside the type.
    const Json* schema = inside.Any("schema");
    if (schema == nullptr) return;
    format = {OutputFormat::Kind::kJsonSchema, *schema, "", "response_format.schema"};
  } else if (type == "json_schema") {
    inside.Require("json_schema");
    const Json* named = inside.Object("json_schema");
    if (named == nullptr) return;
    const RequestFields definition(*named, "response_format.json_schema", fields.error());
    definition.Require("schema");
    const Json* schema = definition.Any("schema");
    if (schema == nullptr) return;
    format = {OutputFormat::Kind::kJsonSchema, *schema, "", "response_format.json_schema.schema"};
  } else {
    fields.error().Set("response_format.type",
                       "'response_format.type' is \"{}\"; it must be \"text\", \"json_object\" or "
                       "\"json_schema\"",
                       type);
  }
}

void RefuseDeprecated(const RequestFields& fields) {
  for (const std::string_view name : {"functions", "function_call"}) {
    if (fields.Any(name) == nullptr) continue;
    fields.error().Set(std::string(name), "'{}' is not supported; use 'tools' and 'tool_choice'",
                       name);
  }
  if (fields.Any("audio") != nullptr) {
    fields.error().Set("audio", "'audio' is not supported; the model takes and gives text only");
  }
}

void ReadReasoning(const RequestFields& fields, ChatRequest& request) {
  if (const Json* variables = fields.Object("chat_template_kwargs")) {
    request.template_variables = *variables;
  }
  if (const auto effort = fields.String("reasoning_effort")) {
    if (!request.template_variables.contains("enable_thinking") && *effort == "none") {
      request.template_variables["enable_thinking"] = false;
    }
    request.template_variables["reasoning_effort"] = *effort;
  }
  if (const auto format = fields.String("reasoning_format")) {
    if (*format != "auto" && *format != "deepseek" && *format != "none") {
      fields.error().Set("reasoning_format",
                         "'reasoning_format' is \"{}\"; it must be \"auto\" or \"none\"", *format);
    }
    request.separate_reasoning = *format != "none";
  }
}

void ReadPrompt(const RequestFields& fields, CompletionRequest& request) {
  fields.Require("prompt");
  const Json* prompt = fields.Any("prompt");
  if (prompt == nullptr) return;
  const auto tokens = [&](const Json& list, const std::string& path) {
    std::vector<std::int32_t> read;
    for (std::size_t i = 0; i < list.size(); ++i) {
      const bool token = list[i].is_number_unsigned() &&
                         list[i].get<std::uint64_t>() <= std::uint64_t{kMaxTokenId};
      if (!token) {
        fields.error().Set(ElementPath(path, i), "'{}' must be a token id", ElementPath(path, i));
        return;
      }
      read.push_back(list[i].get<std::int32_t>());
    }
    request.token_prompts.push_back(std::move(read));
  };
  if (prompt->is_string()) {
    request.prompts.push_back(prompt->get<std::string>());
  } else if (prompt->is_array() && !prompt->empty() && prompt->front().is_string()) {
    for (std::size_t i = 0; i < prompt->size(); ++i) {
      if (!(*prompt)[i].is_string()) {
        fields.error().Set(ElementPath("prompt", i),
                           "'prompt[{}]' must be a string like 'prompt[0]'", i);
        return;
      }
      request.prompts.push_back((*prompt)[i].get<std::string>());
    }
  } else if (prompt->is_array() && !prompt->empty() && prompt->front().is_array()) {
    for (std::size_t i = 0; i < prompt->size(); ++i) {
      if (!(*prompt)[i].is_array()) {
        fields.error().Set(ElementPath("prompt", i),
                           "'prompt[{}]' must be an array of token ids like 'prompt[0]'", i);
        return;
      }
      tokens((*prompt)[i], ElementPath("prompt", i));
    }
  } else if (prompt->is_array() && !prompt->empty()) {
    tokens(*prompt, "prompt");
  } else {
    fields.error().Set("prompt", "'prompt' must be a string, an array of strings or token ids");
  }
  const std::size_t count = request.prompts.size() + request.token_prompts.size();
  if (count * request.options.choices > kMaxChoices) {
    fields.error().Set("prompt", "{} prompts times n = {} make {} choices; at most {} are accepted",
                       count, request.options.choices, count * request.options.choices,
                       kMaxChoices);
  }
}

}  // namespace

void ReadSampling(const RequestFields& fields, GenerationOptions& options) {
  model::SamplingSettings& sampling = options.sampling;
  ReadFloat(fields, "temperature", 0, 2, sampling.temperature);
  ReadFloat(fields, "top_p", 0, 1, sampling.top_p);
  ReadFloat(fields, "min_p", 0, 1, sampling.min_p);
  ReadFloat(fields, "typical_p", 0, 1, sampling.typical_p);
  ReadInt(fields, "top_k", 0, kMaxTokenId, sampling.top_k);
  ReadFloat(fields, "presence_penalty", -2, 2, sampling.presence_penalty);
  ReadFloat(fields, "frequency_penalty", -2, 2, sampling.frequency_penalty);
  ReadFloat(fields, "repeat_penalty", 1e-3, kAnything, sampling.repeat_penalty);
  ReadInt(fields, "repeat_last_n", -1, model::kMaxLastTokens, sampling.penalty_last_n);
  ReadDry(fields, sampling);
  ReadLogitBias(fields, options);
  if (const auto seed = fields.Integer("seed", std::numeric_limits<std::int64_t>::min(),
                                       std::numeric_limits<std::int64_t>::max())) {
    options.seed = static_cast<std::uint32_t>(*seed);
  }
}

Json ReadMessage(const Json& message, const std::string& path, FirstError& error) {
  static const std::set<std::string, std::less<>> roles = {"system", "developer", "user",
                                                           "assistant", "tool"};
  const RequestFields fields(message, path, error);
  fields.Require("role");
  std::string role = fields.String("role").value_or("user");
  if (!roles.contains(role)) {
    error.Set(fields.PathOf("role"),
              "'{}' is \"{}\"; it must be \"system\", \"developer\", \"user\", \"assistant\" or "
              "\"tool\"",
              fields.PathOf("role"), role);
  }
  if (role == "developer") role = "system";
  const Json* calls = role == "assistant" ? fields.Array("tool_calls") : nullptr;
  Json read = {{"role", role}, {"content", ""}};
  if (const Json* content = fields.Any("content")) {
    read["content"] = ReadContent(*content, fields.PathOf("content"), error);
  } else if (calls == nullptr && role != "assistant") {
    fields.Require("content");
  }
  if (role == "assistant") {
    if (auto reasoning = fields.String("reasoning_content")) {
      read["reasoning_content"] = *std::move(reasoning);
    }
    if (calls != nullptr && !calls->empty()) {
      read["tool_calls"] = ReadToolCalls(*calls, fields.PathOf("tool_calls"), error);
    }
  }
  if (role == "tool") {
    if (auto id = fields.String("tool_call_id")) read["tool_call_id"] = *std::move(id);
  }
  if (auto name = fields.String("name")) read["name"] = *std::move(name);
  return read;
}

Json ReadTools(const RequestFields& fields) {
  const Json* tools = fields.Array("tools");
  Json read = Json::array();
  if (tools == nullptr) return read;
  for (std::size_t i = 0; i < tools->size(); ++i) {
    const RequestFields tool((*tools)[i], ElementPath("tools", i), fields.error());
    const std::string type = tool.String("type").value_or("function");
    if (type != "function") {
      fields.error().Set(tool.PathOf("type"), "'{}' is \"{}\"; it must be \"function\"",
                         tool.PathOf("type"), type);
    }
    tool.Require("function");
    const Json* function = tool.Object("function");
    if (function == nullptr) return read;
    const RequestFields inside(*function, tool.PathOf("function"), fields.error());
    inside.Require("name");
    const auto name = inside.String("name");
    static_cast<void>(inside.String("description"));
    static_cast<void>(inside.Object("parameters"));
    if (!name) return read;
    read.push_back({{"type", "function"}, {"function", *function}});
  }
  return read;
}

ApiResult<ChatRequest> ParseChatRequest(const Json& body) {
  FirstError error;
  const RequestFields fields(body, "", error);
  ChatRequest request;
  ReadOptions(fields, request.options);
  if (const auto count = fields.Integer("max_completion_tokens", 1, kMaxTokens)) {
    request.options.max_tokens = static_cast<std::size_t>(*count);
  }
  request.options.logprobs = fields.Boolean("logprobs").value_or(false);
  if (const auto top = fields.Integer("top_logprobs", 0, 20)) {
    request.options.top_logprobs = static_cast<std::size_t>(*top);
    if (*top > 0 && !request.options.logprobs) {
      error.Set("top_logprobs", "'top_logprobs' needs 'logprobs' to be true");
    }
  }
  RefuseDeprecated(fields);
  fields.Require("messages");
  if (const Json* messages = fields.Array("messages")) {
    if (messages->empty()) error.Set("messages", "'messages' is empty; give at least one message");
    for (std::size_t i = 0; i < messages->size(); ++i) {
      request.messages.push_back(ReadMessage((*messages)[i], ElementPath("messages", i), error));
    }
  }
  request.tools = ReadTools(fields);
  ReadToolChoice(fields, request);
  request.parallel_tool_calls = fields.Boolean("parallel_tool_calls").value_or(true);
  ReadFormat(fields, request.format);
  ReadReasoning(fields, request);
  if (error.error()) return std::unexpected(*error.error());
  return request;
}

ApiResult<CompletionRequest> ParseCompletionRequest(const Json& body) {
  FirstError error;
  const RequestFields fields(body, "", error);
  CompletionRequest request;
  ReadOptions(fields, request.options);
  if (!request.options.max_tokens) request.options.max_tokens = 16;  // OpenAI's default
  if (const auto top = fields.Integer("logprobs", 0, 20)) {
    request.options.logprobs = true;
    request.options.top_logprobs = static_cast<std::size_t>(*top);
  }
  if (const auto best = fields.Integer("best_of", 1, kMaxChoices);
      best && static_cast<std::size_t>(*best) != request.options.choices) {
    error.Set("best_of", "'best_of' is not supported; leave it out or equal to 'n'");
  }
  if (const auto suffix = fields.String("suffix"); suffix && !suffix->empty()) {
    error.Set("suffix", "'suffix' is not supported; leave it out");
  }
  ReadPrompt(fields, request);
  request.echo = fields.Boolean("echo").value_or(false);
  ReadFormat(fields, request.format);
  if (error.error()) return std::unexpected(*error.error());
  return request;
}

}  // namespace server::openai
