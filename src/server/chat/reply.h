// One reply while it is generated: tokens go in, deltas of its parts and the log probabilities
// that belong to them come out, and the whole is kept.
//
// Bytes become whole characters, stop strings end the text, tags are taken apart
// (server/chat/reply_parser.h). One thread.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "engine/engine.h"
#include "server/chat/reply_delta.h"
#include "server/chat/reply_parser.h"
#include "server/chat/stop_strings.h"
#include "server/chat/utf8_stream.h"

namespace server {

struct ToolCall {
  std::string id;
  std::string name;
  std::string arguments;  // JSON text; cut where the reply was
};

enum class StopReason {
  kEnd,         // the model ended it
  kStopString,  // a stop string came up
  kLength,      // max_tokens, or the request's own time limit
  kToolCalls,   // it ended with calls for the client to make
};

struct ReplyOptions {
  ReplyForm form;
  std::vector<std::string> stop;
  bool logprobs = false;
};

class Reply {
 public:
  explicit Reply(ReplyOptions options);

  // What one call of Feed or Finish brought.
  struct Update {
    ReplyDeltas deltas;
    std::vector<engine::GeneratedToken> tokens;  // with logprobs: those whose text was let through
  };

  Update Feed(const engine::GeneratedToken& token);
  // No more tokens come, for `reason` (kStopString is found out by itself).
  Update Finish(engine::FinishReason reason);

  // A stop string came up: no more tokens are wanted.
  bool stopped() const { return stop_.stopped(); }

  // The whole by now.
  const std::string& content() const { return content_; }
  const std::string& reasoning() const { return reasoning_; }
  const std::vector<ToolCall>& calls() const { return calls_; }
  const std::vector<engine::GeneratedToken>& tokens() const { return tokens_; }
  // Tokens fed while it was reasoning.
  std::size_t reasoning_tokens() const { return reasoning_tokens_; }
  // After Finish.
  StopReason stop_reason() const { return stop_reason_; }
  const std::string& stop_string() const { return stop_.matched(); }

 private:
  void Take(std::string text, Update& update);
  void Keep(const Update& update);
  void ReleaseTokens(Update& update);

  ReplyOptions options_;
  Utf8Stream utf8_;
  StopStrings stop_;
  ReplyParser parser_;
  std::string content_;
  std::string reasoning_;
  std::vector<ToolCall> calls_;
  std::vector<engine::GeneratedToken> tokens_;
  std::size_t reasoning_tokens_ = 0;
  StopReason stop_reason_ = StopReason::kEnd;

  // Tokens whose text is still kept back, with where it begins in the whole text.
  struct HeldToken {
    engine::GeneratedToken token;
    std::size_t begin;
  };
  std::vector<HeldToken> held_;
  std::size_t text_size_ = 0;   // of what was fed, in characters' bytes
  std::size_t shown_size_ = 0;  // of it, what the stop strings let through
};

// `prefix` and 24 random letters and digits.
std::string RandomId(std::string_view prefix);

}  // namespace server
