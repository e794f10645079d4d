#include "model/text/chat_template.h"

#include <algorithm>
#include <ctime>
#include <exception>
#include <minja/minja.hpp>
#include <utility>

namespace model {
namespace {

using Json = nlohmann::ordered_json;

// strftime_now(format): some templates tell the model today's date.
minja::Value FormattedNow(const std::shared_ptr<minja::Context>&, minja::ArgumentsValue& args) {
  args.expectArgs("strftime_now", {1, 1}, {0, 0});
  const std::string format = args.args[0].get<std::string>();
  const std::time_t now = std::time(nullptr);
  std::tm local = {};
  ::localtime_r(&now, &local);
  std::string text(256, '\0');
  text.resize(std::strftime(text.data(), text.size(), format.c_str(), &local));
  return minja::Value(text);
}

// minja adds the surrounding lines of the template; the first line says what and where.
std::string FirstLine(std::string message) {
  message.resize(std::min(message.find('\n'), message.size()));
  if (message.ends_with(':')) message.pop_back();
  return message;
}

}  // namespace

const char* const kChatMl =
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}";

struct ChatTemplate::State {
  std::string source;
  std::string start_token;
  std::string end_token;
  std::shared_ptr<minja::TemplateNode> root;
};

ChatTemplate::ChatTemplate(std::unique_ptr<State> state) : state_(std::move(state)) {}
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;
ChatTemplate::~ChatTemplate() = default;

base::Result<ChatTemplate> ChatTemplate::Make(std::string source, std::string start_token,
                                              std::string end_token) {
  auto state = std::make_unique<State>();
  state->source = source.empty() ? kChatMl : std::move(source);
  state->start_token = std::move(start_token);
  state->end_token = std::move(end_token);
  try {
    state->root = minja::Parser::parse(
        state->source,
        {.trim_blocks = true, .lstrip_blocks = true, .keep_trailing_newline = false});
  } catch (const std::exception& error) {
    return base::Fail(base::ErrorKind::kInvalidInput,
                      "the chat template does not parse: {}; give another one with "
                      "--chat-template FILE",
                      FirstLine(error.what()));
  }
  return ChatTemplate(std::move(state));
}

base::Result<std::string> ChatTemplate::Render(const ChatInput& input) const {
  try {
    auto context = minja::Context::make(minja::Value(Json{
        {"messages", input.messages}, {"add_generation_prompt", input.add_generation_prompt}}));
    context->set("bos_token", minja::Value(state_->start_token));
    context->set("eos_token", minja::Value(state_->end_token));
    context->set("strftime_now", minja::Value::callable(FormattedNow));
    if (!input.tools.empty()) context->set("tools", minja::Value(input.tools));
    for (const auto& [name, value] : input.variables.items()) {
      context->set(name, minja::Value(value));
    }
    return state_->root->render(context);
  } catch (const std::exception& error) {
    return base::Fail(base::ErrorKind::kInvalidInput, "the chat template refuses: {}",
                      FirstLine(error.what()));
  }
}

bool ChatTemplate::knows_tools() const { return state_->source.contains("tools"); }

const std::string& ChatTemplate::source() const { return state_->source; }

}  // namespace model
