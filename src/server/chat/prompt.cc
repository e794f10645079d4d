#include "server/chat/prompt.h"

#include <algorithm>
#include <utility>

#include "server/chat/tool_call_stream.h"

namespace server {
namespace {

bool ShowsTools(const ChatRequest& request) {
  return !request.tools.empty() && request.tool_choice.kind != ToolChoice::Kind::kNone;
}

bool MustCall(const ChatRequest& request) {
  return request.tool_choice.kind == ToolChoice::Kind::kRequired ||
         request.tool_choice.kind == ToolChoice::Kind::kFunction;
}

bool IsConstrained(const ChatRequest& request) {
  return request.format.kind != OutputFormat::Kind::kText || MustCall(request);
}

model::ChatInput InputOf(const ChatRequest& request, const model::ChatTemplate& chat) {
  model::ChatInput input{.messages = request.messages, .variables = request.template_variables};
  if (request.continue_last) input.messages.erase(input.messages.size() - 1);
  if (ShowsTools(request)) input.tools = request.tools;
  if (!chat.knows_tools()) {
    input.messages = WithToolsAsText(input.messages, input.tools);
    input.tools = Json::array();
  }
  // A grammar governs the reply from its first token, so there is no room to think.
  if (IsConstrained(request) && !input.variables.contains("enable_thinking")) {
    input.variables["enable_thinking"] = false;
  }
  return input;
}

// Whether the prompt ends in an open <think>, blank space behind it aside.
bool EndsInThinking(std::string_view prompt) {
  return prompt.substr(0, prompt.find_last_not_of(" \t\r\n") + 1).ends_with("<think>");
}

std::string CallText(const Json& call) {
  const Json& function = call["function"];
  return std::string(kToolCallStart) + "\n" +
         Dump({{"name", function["name"]}, {"arguments", function["arguments"]}}) + "\n" +
         std::string(kToolCallEnd);
}

// A JSON object of any shape.
Json AnyObject() { return {{"type", "object"}}; }

// The schema of what stands between <tool_call> and </tool_call>.
Json CallSchema(const Json& function) {
  const auto parameters = function.find("parameters");
  const bool any = parameters == function.end() || !parameters->is_object() || parameters->empty();
  return {
      {"type", "object"},
      {"properties",
       {{"name", {{"const", function["name"]}}}, {"arguments", any ? AnyObject() : *parameters}}},
      {"required", Json::array({"name", "arguments"})},
      {"additionalProperties", false}};
}

// `grammar` with its rule `root` between the tags of a call.
std::string BetweenCallTags(std::string grammar) {
  constexpr std::string_view kRoot = "root ::=";
  const std::size_t at = grammar.starts_with(kRoot) ? 0 : grammar.find("\nroot ::=");
  if (at != std::string::npos) {
    grammar.replace(at == 0 && grammar.starts_with(kRoot) ? 0 : at + 1, kRoot.size(),
                    "call-object ::=");
  }
  return "root ::= \"" + std::string(kToolCallStart) + "\\n\" call-object \"\\n" +
         std::string(kToolCallEnd) + "\"\n" + grammar;
}

}  // namespace

Json WithToolsAsText(const Json& messages, const Json& tools) {
  Json changed = Json::array();
  if (!tools.empty()) {
    std::string text = "You can call functions. These exist, one JSON object a line:\n";
    for (const Json& tool : tools) text += Dump(tool) + "\n";
    text +=
        "To call one, write a JSON object with its name and arguments between tags, like this:\n" +
        std::string(kToolCallStart) + "\n{\"name\": \"NAME\", \"arguments\": {}}\n" +
        std::string(kToolCallEnd);
    changed.push_back({{"role", "system"}, {"content", text}});
  }
  for (const Json& message : messages) {
    const std::string role = message.value("role", "");
    Json copy = message;
    if (role == "system" && changed.size() == 1 && !tools.empty()) {
      changed[0]["content"] =
          message.value("content", "") + "\n\n" + changed[0].value("content", "");
      continue;
    }
    if (const auto calls = message.find("tool_calls"); calls != message.end()) {
      std::string content = message.value("content", "");
      for (const Json& call : *calls) content += (content.empty() ? "" : "\n") + CallText(call);
      copy["content"] = content;
    } else if (role == "tool") {
      copy = {
          {"role", "user"},
          {"content", "<tool_response>\n" + message.value("content", "") + "\n</tool_response>"}};
    }
    changed.push_back(std::move(copy));
  }
  return changed;
}

std::vector<std::size_t> MessageBoundaries(const std::vector<model::Token>& tokens,
                                           const model::Vocabulary& vocabulary) {
  std::vector<std::size_t> boundaries;
  for (std::size_t i = 0; i + 1 < tokens.size(); ++i) {
    if (vocabulary.IsEndOfGeneration(tokens[i])) boundaries.push_back(i + 1);
  }
  return boundaries;
}

ApiResult<ChatPrompt> MakePrompt(const ChatRequest& request, const model::ChatTemplate& chat,
                                 const model::Vocabulary& vocabulary) {
  auto text = chat.Render(InputOf(request, chat));
  if (!text) return std::unexpected(FromError(text.error(), "messages"));
  if (request.continue_last) *text += request.messages.back().value("content", "");
  // A template that writes the model's start token itself must not get it twice.
  const std::string start = vocabulary.adds_start_token() && vocabulary.start_token() >= 0
                                ? vocabulary.Piece(vocabulary.start_token())
                                : std::string();
  const bool add_special = start.empty() || !text->starts_with(start);
  auto tokens = vocabulary.Tokenize(*text, add_special);
  if (!tokens) return std::unexpected(FromError(tokens.error(), "messages"));
  if (tokens->empty()) {
    return BadRequest("messages", "the chat template made an empty prompt of 'messages'");
  }
  ChatPrompt prompt{.text = std::move(*text), .tokens = std::move(*tokens)};
  prompt.boundaries = MessageBoundaries(prompt.tokens, vocabulary);
  prompt.form = {.separate_reasoning = request.separate_reasoning && !IsConstrained(request),
                 .starts_in_reasoning = EndsInThinking(prompt.text),
                 .tool_calls = ShowsTools(request),
                 .tools = request.tools};
  return prompt;
}

ApiResult<std::string> MakeGrammar(const OutputFormat& format, const SchemaToGrammar& to_grammar) {
  if (format.kind == OutputFormat::Kind::kText) return std::string();
  if (format.kind == OutputFormat::Kind::kGrammar) return format.grammar;
  auto grammar = to_grammar(format.kind == OutputFormat::Kind::kJson ? AnyObject() : format.schema);
  if (!grammar) return std::unexpected(FromError(grammar.error(), format.param));
  return *grammar;
}

ApiResult<std::string> MakeGrammar(const ChatRequest& request, const SchemaToGrammar& to_grammar) {
  if (!MustCall(request)) return MakeGrammar(request.format, to_grammar);
  Json calls = Json::array();
  for (const Json& tool : request.tools) {
    if (request.tool_choice.kind == ToolChoice::Kind::kRequired ||
        tool["function"]["name"] == request.tool_choice.name) {
      calls.push_back(CallSchema(tool["function"]));
    }
  }
  auto grammar = to_grammar(calls.size() == 1 ? calls.front() : Json{{"anyOf", calls}});
  if (!grammar) return std::unexpected(FromError(grammar.error(), "tools"));
  return BetweenCallTags(std::move(*grammar));
}

}  // namespace server
