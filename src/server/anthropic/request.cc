#include "server/anthropic/request.h"

#include <algorithm>
#include <utility>

#include "server/openai/request.h"
#include "server/request_fields.h"

namespace server::anthropic {
namespace {

constexpr std::int64_t kMaxTokens = 1 << 24;

// A string, or blocks of type "text".
std::string ReadText(const Json& content, const std::string& path, FirstError& error) {
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) {
    error.Set(path, "'{}' is {}; it must be a string or an array of blocks", path, KindOf(content));
    return {};
  }
  std::string text;
  for (std::size_t i = 0; i < content.size(); ++i) {
    const RequestFields block(content[i], ElementPath(path, i), error);
    const std::string type = block.String("type").value_or("");
    if (type != "text") {
      error.Set(block.PathOf("type"),
                "'{}' is \"{}\"; the model takes blocks of type \"text\" only",
                block.PathOf("type"), type);
      return text;
    }
    block.Require("text");
    text += (text.empty() ? "" : "\n") + block.String("text").value_or("");
  }
  return text;
}

// Blocks of one message, sorted into what templates know.
struct Blocks {
  std::string text;
  std::string reasoning;
  Json calls = Json::array();
  Json results = Json::array();  // messages of role "tool"
};

void ReadToolUse(const RequestFields& block, Blocks& blocks) {
  block.Require("name");
  block.Require("input");
  const Json* input = block.Object("input");
  blocks.calls.push_back({{"id", block.String("id").value_or("")},
                          {"type", "function"},
                          {"function",
                           {{"name", block.String("name").value_or("")},
                            {"arguments", input == nullptr ? Json::object() : *input}}}});
}

void ReadToolResult(const RequestFields& block, Blocks& blocks) {
  block.Require("tool_use_id");
  const Json* content = block.Any("content");
  std::string text;
  if (content != nullptr) text = ReadText(*content, block.PathOf("content"), block.error());
  if (block.Boolean("is_error").value_or(false)) text = "Error: " + text;
  blocks.results.push_back({{"role", "tool"},
                            {"content", std::move(text)},
                            {"tool_call_id", block.String("tool_use_id").value_or("")}});
}

void ReadBlock(const RequestFields& block, bool assistant, Blocks& blocks) {
  block.Require("type");
  const std::string type = block.String("type").value_or("");
  if (type == "text") {
    block.Require("text");
    blocks.text += block.String("text").value_or("");
  } else if (type == "thinking" && assistant) {
    blocks.reasoning += block.String("thinking").value_or("");
  } else if (type == "redacted_thinking" && assistant) {
    // Nobody but its author can read it.
  } else if (type == "tool_use" && assistant) {
    ReadToolUse(block, blocks);
  } else if (type == "tool_result" && !assistant) {
    ReadToolResult(block, blocks);
  } else {
    block.error().Set(
        block.PathOf("type"), "'{}' is \"{}\"; here it must be {}", block.PathOf("type"), type,
        assistant ? "\"text\", \"thinking\" or \"tool_use\"" : "\"text\" or \"tool_result\"");
  }
}

void ReadMessage(const Json& message, const std::string& path, ChatRequest& request,
                 FirstError& error) {
  const RequestFields fields(message, path, error);
  fields.Require("role");
  fields.Require("content");
  const std::string role = fields.String("role").value_or("user");
  if (role != "user" && role != "assistant") {
    error.Set(fields.PathOf("role"), "'{}' is \"{}\"; it must be \"user\" or \"assistant\"",
              fields.PathOf("role"), role);
  }
  const Json* content = fields.Any("content");
  if (content == nullptr) return;
  Blocks blocks;
  if (content->is_string()) {
    blocks.text = content->get<std::string>();
  } else if (content->is_array()) {
    for (std::size_t i = 0; i < content->size(); ++i) {
      const RequestFields block((*content)[i], ElementPath(fields.PathOf("content"), i), error);
      ReadBlock(block, role == "assistant", blocks);
    }
  } else {
    error.Set(fields.PathOf("content"), "'{}' is {}; it must be a string or an array of blocks",
              fields.PathOf("content"), KindOf(*content));
  }
  const bool only_results = !blocks.results.empty() && blocks.text.empty();
  for (Json& result : blocks.results) request.messages.push_back(std::move(result));
  if (only_results) return;
  Json read = {{"role", role}, {"content", std::move(blocks.text)}};
  if (!blocks.reasoning.empty()) read["reasoning_content"] = std::move(blocks.reasoning);
  if (!blocks.calls.empty()) read["tool_calls"] = std::move(blocks.calls);
  request.messages.push_back(std::move(read));
}

void ReadTools(const RequestFields& fields, ChatRequest& request) {
  const Json* tools = fields.Array("tools");
  if (tools == nullptr) return;
  for (std::size_t i = 0; i < tools->size(); ++i) {
    const RequestFields tool((*tools)[i], ElementPath("tools", i), fields.error());
    const std::string type = tool.String("type").value_or("custom");
    if (type != "custom") {
      fields.error().Set(tool.PathOf("type"), "'{}' is \"{}\"; only \"custom\" tools are supported",
                         tool.PathOf("type"), type);
    }
    tool.Require("name");
    tool.Require("input_schema");
    const Json* schema = tool.Object("input_schema");
    Json function = {{"name", tool.String("name").value_or("")}};
    if (auto description = tool.String("description")) {
      function["description"] = *std::move(description);
    }
    function["parameters"] = schema == nullptr ? Json::object() : *schema;
    request.tools.push_back({{"type", "function"}, {"function", std::move(function)}});
  }
}

void ReadToolChoice(const RequestFields& fields, ChatRequest& request) {
  const Json* choice = fields.Object("tool_choice");
  if (choice == nullptr) return;
  const RequestFields inside(*choice, "tool_choice", fields.error());
  inside.Require("type");
  const std::string type = inside.String("type").value_or("auto");
  request.parallel_tool_calls = !inside.Boolean("disable_parallel_tool_use").value_or(false);
  ToolChoice& read = request.tool_choice;
  if (type == "none") {
    read.kind = ToolChoice::Kind::kNone;
  } else if (type == "any") {
    read.kind = ToolChoice::Kind::kRequired;
  } else if (type == "tool") {
    inside.Require("name");
    read.kind = ToolChoice::Kind::kFunction;
    read.name = inside.String("name").value_or("");
  } else if (type != "auto") {
    fields.error().Set("tool_choice.type",
                       "'tool_choice.type' is \"{}\"; it must be \"auto\", \"any\", \"tool\" or "
                       "\"none\"",
                       type);
  }
  if (read.kind != ToolChoice::Kind::kRequired && read.kind != ToolChoice::Kind::kFunction) return;
  const bool known = std::ranges::any_of(request.tools, [&read](const Json& tool) {
    return read.kind == ToolChoice::Kind::kRequired || tool["function"]["name"] == read.name;
  });
  if (!known) {
    fields.error().Set("tool_choice", "'tool_choice' asks for a tool that 'tools' does not have");
  }
}

void ReadOptions(const RequestFields& fields, bool counting, ChatRequest& request) {
  GenerationOptions& options = request.options;
  options.model = fields.String("model").value_or("");
  if (!counting) fields.Require("max_tokens");
  if (const auto count = fields.Integer("max_tokens", 1, kMaxTokens)) {
    options.max_tokens = static_cast<std::size_t>(*count);
  }
  openai::ReadSampling(fields, options);
  options.stream = fields.Boolean("stream").value_or(false);
  options.ignore_end = fields.Boolean("ignore_eos").value_or(false);
  if (const Json* stop = fields.Array("stop_sequences")) {
    if (stop->size() > openai::kMaxStopStrings) {
      fields.error().Set("stop_sequences",
                         "'stop_sequences' has {} strings; at most {} are accepted", stop->size(),
                         openai::kMaxStopStrings);
    }
    for (std::size_t i = 0; i < stop->size(); ++i) {
      if (!(*stop)[i].is_string()) {
        fields.error().Set(ElementPath("stop_sequences", i),
                           "'stop_sequences[{}]' is {}; it must be a string", i,
                           KindOf((*stop)[i]));
        return;
      }
      options.stop.push_back((*stop)[i].get<std::string>());
    }
  }
}

// Without asking for it, Anthropic's clients get no thinking.
void ReadThinking(const RequestFields& fields, ChatRequest& request) {
  bool enabled = false;
  if (const Json* thinking = fields.Object("thinking")) {
    const RequestFields inside(*thinking, "thinking", fields.error());
    inside.Require("type");
    const std::string type = inside.String("type").value_or("disabled");
    enabled = type == "enabled" || type == "adaptive";
    if (!enabled && type != "disabled") {
      fields.error().Set("thinking.type",
                         "'thinking.type' is \"{}\"; it must be \"enabled\" or \"disabled\"", type);
    }
  }
  request.template_variables["enable_thinking"] = enabled;
  if (const Json* variables = fields.Object("chat_template_kwargs")) {
    request.template_variables.update(*variables);
  }
}

}  // namespace

ApiResult<ChatRequest> ParseMessagesRequest(const Json& body, bool counting) {
  FirstError error;
  const RequestFields fields(body, "", error);
  ChatRequest request;
  ReadOptions(fields, counting, request);
  if (const Json* system = fields.Any("system")) {
    request.messages.push_back(
        {{"role", "system"}, {"content", ReadText(*system, "system", error)}});
  }
  fields.Require("messages");
  if (const Json* messages = fields.Array("messages")) {
    if (messages->empty()) error.Set("messages", "'messages' is empty; give at least one message");
    for (std::size_t i = 0; i < messages->size(); ++i) {
      ReadMessage((*messages)[i], ElementPath("messages", i), request, error);
    }
  }
  ReadTools(fields, request);
  ReadToolChoice(fields, request);
  ReadThinking(fields, request);
  if (error.error()) return std::unexpected(*error.error());
  request.continue_last = !request.messages.empty() &&
                          request.messages.back()["role"] == "assistant" &&
                          !request.messages.back().contains("tool_calls");
  return request;
}

}  // namespace server::anthropic
