// Turns a conversation into the text that a model was trained on.
//
// Templates are Jinja, of the model file or of the user, rendered by minja. Immutable; any thread.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "base/result.h"

namespace model {

struct ChatInput {
  // What templates read: objects with role ("system", "user", "assistant", "tool"), content (a
  // string), and of an assistant also reasoning_content and tool_calls, whose arguments are
  // objects.
  nlohmann::ordered_json messages = nlohmann::ordered_json::array();
  // In OpenAI's form; empty: none.
  nlohmann::ordered_json tools = nlohmann::ordered_json::array();
  bool add_generation_prompt = true;
  // Further variables, enable_thinking among them.
  nlohmann::ordered_json variables = nlohmann::ordered_json::object();
};

class ChatTemplate {
 public:
  // `source` empty means ChatML (kChatMl). The start and end tokens' texts are
  // variables of the template. Errors: kInvalidInput when it does not parse, with the line.
  static base::Result<ChatTemplate> Make(std::string source, std::string start_token,
                                         std::string end_token);

  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;
  ~ChatTemplate();

  // Errors: kInvalidInput when the template refuses the conversation, with its own words, or fails.
  base::Result<std::string> Render(const ChatInput& input) const;

  // Whether the template says anything of tools. One that does not leaves them and calls out
  // silently.
  bool knows_tools() const;
  const std::string& source() const;

 private:
  struct State;
  explicit ChatTemplate(std::unique_ptr<State> state);

  std::unique_ptr<State> state_;
};

// Roles and contents; nothing of tools.
extern const char* const kChatMl;

}  // namespace model
