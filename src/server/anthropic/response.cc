#include "server/anthropic/response.h"

#include <utility>

namespace server::anthropic {
namespace {

std::string Event(std::string_view type, Json data) {
  Json event = {{"type", type}};
  event.update(data);
  return "event: " + std::string(type) + "\ndata: " + Dump(event) + "\n\n";
}

std::string_view StopReasonName(const Reply& reply) {
  switch (reply.stop_reason()) {
    case StopReason::kLength:
      return "max_tokens";
    case StopReason::kToolCalls:
      return "tool_use";
    case StopReason::kStopString:
      return "stop_sequence";
    case StopReason::kEnd:
      return "end_turn";
  }
  return "end_turn";
}

Json StopSequence(const Reply& reply) {
  return reply.stop_string().empty() ? Json() : Json(reply.stop_string());
}

// Cached tokens are counted apart, as Anthropic does.
Json UsageJson(const Usage& usage) {
  return {{"input_tokens", usage.prompt_tokens - usage.cached_tokens},
          {"cache_creation_input_tokens", 0},
          {"cache_read_input_tokens", usage.cached_tokens},
          {"output_tokens", usage.completion_tokens}};
}

class MessagesFormat final : public ReplyFormat {
 public:
  explicit MessagesFormat(ReplyHead head) : head_(std::move(head)) {}

  std::string Begin() override {
    Json message = Message(Json::array());
    message["usage"] = UsageJson({.prompt_tokens = head_.prompt_tokens});
    return Event("message_start", {{"message", std::move(message)}}) +
           Event("ping", Json::object());
  }

  std::string Update(std::size_t, const Reply& reply, const Reply::Update& update) override {
    std::string events;
    for (const ReplyDelta& delta : update.deltas) {
      switch (delta.kind) {
        case ReplyDelta::Kind::kReasoning:
          events +=
              Open(Block::kThinking, {{"type", "thinking"}, {"thinking", ""}, {"signature", ""}});
          events += Delta({{"type", "thinking_delta"}, {"thinking", delta.text}});
          break;
        case ReplyDelta::Kind::kContent:
          events += Open(Block::kText, {{"type", "text"}, {"text", ""}});
          events += Delta({{"type", "text_delta"}, {"text", delta.text}});
          break;
        case ReplyDelta::Kind::kToolCall:
          events += Close();
          events += Open(Block::kToolUse, {{"type", "tool_use"},
                                           {"id", reply.calls()[delta.call].id},
                                           {"name", delta.name},
                                           {"input", Json::object()}});
          break;
        case ReplyDelta::Kind::kToolArguments:
          events += Delta({{"type", "input_json_delta"}, {"partial_json", delta.text}});
          break;
      }
    }
    return events;
  }

  std::string EndChoice(std::size_t, const Reply& reply) override {
    stop_ = {{"stop_reason", StopReasonName(reply)}, {"stop_sequence", StopSequence(reply)}};
    return Close();
  }

  std::string End(const Usage& usage) override {
    return Event("message_delta", {{"delta", stop_}, {"usage", UsageJson(usage)}}) +
           Event("message_stop", Json::object());
  }

  std::string Failure(const ApiError& error) override {
    return Event("error", {{"error", ErrorBody(error)["error"]}});
  }

  Json Whole(std::span<const Reply* const> replies, const Usage& usage) override {
    const Reply& reply = *replies.front();
    Json content = Json::array();
    if (!reply.reasoning().empty()) {
      content.push_back({{"type", "thinking"}, {"thinking", reply.reasoning()}, {"signature", ""}});
    }
    if (!reply.content().empty()) {
      content.push_back({{"type", "text"}, {"text", reply.content()}});
    }
    for (const ToolCall& call : reply.calls()) {
      // A call that was cut off has no valid input.
      Json input = ParseOrDiscard(call.arguments);
      if (!input.is_object()) input = Json::object();
      content.push_back({{"type", "tool_use"},
                         {"id", call.id},
                         {"name", call.name},
                         {"input", std::move(input)}});
    }
    Json message = Message(std::move(content));
    message["stop_reason"] = StopReasonName(reply);
    message["stop_sequence"] = StopSequence(reply);
    message["usage"] = UsageJson(usage);
    return message;
  }

 private:
  enum class Block { kNone, kText, kThinking, kToolUse };

  Json Message(Json content) const {
    return {{"id", head_.id},
            {"type", "message"},
            {"role", "assistant"},
            {"model", head_.model},
            {"content", std::move(content)},
            {"stop_reason", nullptr},
            {"stop_sequence", nullptr}};
  }

  // Ends the block that is open unless it is of this kind, and begins one with `head`.
  std::string Open(Block block, Json head) {
    if (open_ == block) return {};
    std::string events = Close();
    open_ = block;
    return events +
           Event("content_block_start", {{"index", index_}, {"content_block", std::move(head)}});
  }

  std::string Close() {
    if (open_ == Block::kNone) return {};
    open_ = Block::kNone;
    return Event("content_block_stop", {{"index", index_++}});
  }

  std::string Delta(Json delta) const {
    return Event("content_block_delta", {{"index", index_}, {"delta", std::move(delta)}});
  }

  const ReplyHead head_;
  Block open_ = Block::kNone;
  std::size_t index_ = 0;  // of the block that is open, or of the next
  Json stop_ = {{"stop_reason", "end_turn"}, {"stop_sequence", nullptr}};
};

std::string_view ErrorType(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 404:
      return "not_found_error";
    case 413:
      return "request_too_large";
    case 429:
      return "rate_limit_error";
    case 503:
      return "overloaded_error";
    default:
      return status >= 500 ? "api_error" : "invalid_request_error";
  }
}

}  // namespace

std::unique_ptr<ReplyFormat> MakeMessagesFormat(ReplyHead head) {
  return std::make_unique<MessagesFormat>(std::move(head));
}

Json ErrorBody(const ApiError& error) {
  return {{"type", "error"},
          {"error", {{"type", ErrorType(error.status)}, {"message", error.message}}}};
}

}  // namespace server::anthropic
