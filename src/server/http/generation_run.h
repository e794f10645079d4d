// The generations of one request, from tokens to the protocol's answer.
//
// One thread, that of the request's connection. Destroying it cancels what still runs.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "server/api_error.h"
#include "server/chat/reply.h"
#include "server/chat/reply_format.h"

namespace server {

class GenerationRun {
 public:
  // Submits all of `requests`, one a choice, or none. Errors: the engine's, with `param`.
  static ApiResult<std::unique_ptr<GenerationRun>> Submit(
      engine::Engine& engine, std::vector<engine::GenerationRequest> requests,
      const ReplyOptions& options, const std::string& param);

  // Waits for tokens, `wait` at most, and hands them to the replies. Returns the events that they
  // make in `format`, without Begin and End. Sets failure() when a generation failed.
  std::string Step(std::chrono::milliseconds wait, ReplyFormat& format);

  // Every choice has ended, or failure() is set.
  bool done() const;
  const std::optional<ApiError>& failure() const { return failure_; }
  std::vector<const Reply*> replies() const;
  // Of what ran so far; whole once done.
  const Usage& usage() const { return usage_; }

 private:
  struct Choice {
    std::unique_ptr<engine::Generation> generation;
    std::unique_ptr<Reply> reply;
    bool ended = false;
  };

  void StepChoice(std::size_t index, std::chrono::milliseconds wait, ReplyFormat& format,
                  std::string& events);
  void EndChoice(std::size_t index, ReplyFormat& format, std::string& events);

  std::vector<Choice> choices_;
  std::optional<ApiError> failure_;
  Usage usage_;
};

}  // namespace server
