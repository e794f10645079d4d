#include "server/openai/response.h"

#include <algorithm>
#include <utility>

#include "server/openai/logprobs.h"

namespace server::openai {
namespace {

std::string_view FinishReason(const Reply& reply) {
  switch (reply.stop_reason()) {
    case StopReason::kLength:
      return "length";
    case StopReason::kToolCalls:
      return "tool_calls";
    case StopReason::kEnd:
    case StopReason::kStopString:
      return "stop";
  }
  return "stop";
}

Json UsageJson(const Usage& usage) {
  return {{"prompt_tokens", usage.prompt_tokens},
          {"completion_tokens", usage.completion_tokens},
          {"total_tokens", usage.prompt_tokens + usage.completion_tokens},
          {"prompt_tokens_details", {{"cached_tokens", usage.cached_tokens}}},
          {"completion_tokens_details", {{"reasoning_tokens", usage.reasoning_tokens}}}};
}

// Not OpenAI's; clients pass it over, the page shows it.
Json TimingsJson(const Usage& usage) {
  return {
      {"queue_ms", usage.queue_ms}, {"prompt_ms", usage.prompt_ms}, {"decode_ms", usage.decode_ms}};
}

// What both endpoints have in common.
class Format : public ReplyFormat {
 public:
  Format(ReplyHead head, bool logprobs, std::string_view whole, std::string_view chunk)
      : head_(std::move(head)), logprobs_(logprobs), whole_(whole), chunk_(chunk) {}

  std::string End(const Usage& usage) override {
    std::string events;
    if (head_.stream_usage) {
      Json chunk = Document(chunk_, Json::array());
      chunk["usage"] = UsageJson(usage);
      chunk["timings"] = TimingsJson(usage);
      events = Event(chunk);
    }
    return events + std::string(kDone);
  }

  std::string Failure(const ApiError& error) override {
    return Event(ErrorBody(error)) + std::string(kDone);
  }

  Json Whole(std::span<const Reply* const> replies, const Usage& usage) override {
    Json choices = Json::array();
    for (std::size_t i = 0; i < replies.size(); ++i) choices.push_back(Choice(i, *replies[i]));
    Json document = Document(whole_, std::move(choices));
    document["usage"] = UsageJson(usage);
    document["timings"] = TimingsJson(usage);
    return document;
  }

 protected:
  virtual Json Choice(std::size_t index, const Reply& reply) const = 0;

  Json Document(std::string_view object, Json choices) const {
    return {{"id", head_.id},
            {"object", object},
            {"created", head_.created},
            {"model", head_.model},
            {"choices", std::move(choices)}};
  }

  std::string Chunk(Json choice) const {
    Json chunk = Document(chunk_, Json::array({std::move(choice)}));
    if (head_.stream_usage) chunk["usage"] = nullptr;
    return Event(chunk);
  }

  const ReplyHead head_;
  const bool logprobs_;

 private:
  const std::string_view whole_;
  const std::string_view chunk_;
};

class ChatFormat final : public Format {
 public:
  ChatFormat(ReplyHead head, bool logprobs)
      : Format(std::move(head), logprobs, "chat.completion", "chat.completion.chunk") {}

  std::string Begin() override {
    std::string events;
    for (std::size_t i = 0; i < head_.choices; ++i) {
      events += DeltaChunk(i, {{"role", "assistant"}, {"content", ""}}, Json());
    }
    return events;
  }

  std::string Update(std::size_t choice, const Reply& reply, const Reply::Update& update) override {
    std::string events;
    // The probabilities go with the first chunk, or alone where no text came with them.
    Json logprobs =
        logprobs_ && !update.tokens.empty() ? ChatLogprobs(update.tokens, head_.piece) : Json();
    for (const ReplyDelta& delta : update.deltas) {
      events += DeltaChunk(choice, DeltaJson(reply, delta), std::exchange(logprobs, Json()));
    }
    if (!logprobs.is_null()) events += DeltaChunk(choice, Json::object(), std::move(logprobs));
    return events;
  }

  std::string EndChoice(std::size_t choice, const Reply& reply) override {
    return Chunk({{"index", choice},
                  {"delta", Json::object()},
                  {"logprobs", nullptr},
                  {"finish_reason", FinishReason(reply)}});
  }

 protected:
  Json Choice(std::size_t index, const Reply& reply) const override {
    const bool only_calls = reply.content().empty() && !reply.calls().empty();
    Json message = {{"role", "assistant"},
                    {"content", only_calls ? Json() : Json(reply.content())},
                    {"refusal", nullptr}};
    if (!reply.reasoning().empty()) message["reasoning_content"] = reply.reasoning();
    for (const ToolCall& call : reply.calls()) {
      message["tool_calls"].push_back(
          {{"id", call.id},
           {"type", "function"},
           {"function", {{"name", call.name}, {"arguments", call.arguments}}}});
    }
    return {{"index", index},
            {"message", std::move(message)},
            {"logprobs", logprobs_ ? ChatLogprobs(reply.tokens(), head_.piece) : Json()},
            {"finish_reason", FinishReason(reply)}};
  }

 private:
  static Json DeltaJson(const Reply& reply, const ReplyDelta& delta) {
    switch (delta.kind) {
      case ReplyDelta::Kind::kReasoning:
        return {{"reasoning_content", delta.text}};
      case ReplyDelta::Kind::kContent:
        return {{"content", delta.text}};
      case ReplyDelta::Kind::kToolCall:
        return {{"tool_calls",
                 Json::array({{{"index", delta.call},
                               {"id", reply.calls()[delta.call].id},
                               {"type", "function"},
                               {"function", {{"name", delta.name}, {"arguments", ""}}}}})}};
      case ReplyDelta::Kind::kToolArguments:
        return {{"tool_calls", Json::array({{{"index", delta.call},
                                             {"function", {{"arguments", delta.text}}}}})}};
    }
    return Json::object();
  }

  std::string DeltaChunk(std::size_t choice, Json delta, Json logprobs) const {
    return Chunk({{"index", choice},
                  {"delta", std::move(delta)},
                  {"logprobs", std::move(logprobs)},
                  {"finish_reason", nullptr}});
  }
};

class CompletionFormat final : public Format {
 public:
  CompletionFormat(ReplyHead head, bool logprobs, std::vector<std::string> echo,
                   std::size_t choices_per_prompt)
      : Format(std::move(head), logprobs, "text_completion", "text_completion"),
        echo_(std::move(echo)),
        choices_per_prompt_(choices_per_prompt),
        offsets_(head_.choices) {}

  std::string Begin() override {
    std::string events;
    for (std::size_t i = 0; i < head_.choices; ++i) {
      offsets_[i] = EchoOf(i).size();
      if (!EchoOf(i).empty()) events += TextChunk(i, EchoOf(i), Json(), Json());
    }
    return events;
  }

  std::string Update(std::size_t choice, const Reply&, const Reply::Update& update) override {
    std::string text;
    for (const ReplyDelta& delta : update.deltas) text += delta.text;
    Json logprobs;
    if (logprobs_ && !update.tokens.empty()) {
      logprobs = CompletionLogprobs(update.tokens, head_.piece, offsets_[choice]);
    }
    if (text.empty() && logprobs.is_null()) return {};
    return TextChunk(choice, text, std::move(logprobs), Json());
  }

  std::string EndChoice(std::size_t choice, const Reply& reply) override {
    return TextChunk(choice, "", Json(), FinishReason(reply));
  }

 protected:
  Json Choice(std::size_t index, const Reply& reply) const override {
    std::size_t offset = EchoOf(index).size();
    return TextChoice(index, EchoOf(index) + reply.content(),
                      logprobs_ ? CompletionLogprobs(reply.tokens(), head_.piece, offset) : Json(),
                      FinishReason(reply));
  }

 private:
  std::string EchoOf(std::size_t choice) const {
    return echo_.empty() ? std::string() : echo_[choice / choices_per_prompt_];
  }

  static Json TextChoice(std::size_t index, std::string text, Json logprobs, Json reason) {
    return {{"text", std::move(text)},
            {"index", index},
            {"logprobs", std::move(logprobs)},
            {"finish_reason", std::move(reason)}};
  }

  std::string TextChunk(std::size_t index, std::string text, Json logprobs, Json reason) const {
    return Chunk(TextChoice(index, std::move(text), std::move(logprobs), std::move(reason)));
  }

  const std::vector<std::string> echo_;
  const std::size_t choices_per_prompt_;
  std::vector<std::size_t> offsets_;  // [choices], of the next token in the choice's text
};

std::string_view ErrorType(const ApiError& error) {
  if (error.status == 429) return "rate_limit_error";
  if (error.status == 401) return "authentication_error";
  return error.status >= 500 ? "server_error" : "invalid_request_error";
}

}  // namespace

std::string Event(const Json& data) { return "data: " + Dump(data) + "\n\n"; }

Json ErrorBody(const ApiError& error) {
  return {{"error",
           {{"message", error.message},
            {"type", ErrorType(error)},
            {"param", error.param.empty() ? Json() : Json(error.param)},
            {"code", error.code.empty() ? Json() : Json(error.code)}}}};
}

std::unique_ptr<ReplyFormat> MakeChatFormat(ReplyHead head, bool logprobs) {
  return std::make_unique<ChatFormat>(std::move(head), logprobs);
}

std::unique_ptr<ReplyFormat> MakeCompletionFormat(ReplyHead head, bool logprobs,
                                                  std::vector<std::string> echo,
                                                  std::size_t choices_per_prompt) {
  return std::make_unique<CompletionFormat>(std::move(head), logprobs, std::move(echo),
                                            choices_per_prompt);
}

}  // namespace server::openai
