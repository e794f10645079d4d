// How a protocol shows replies: as one document or as a stream of events.
//
// One object a request, one thread. The texts that stream are whole server-sent events, to be sent
// as they are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "model/text/vocabulary.h"
#include "server/api_error.h"
#include "server/chat/reply.h"
#include "server/json.h"

namespace server {

// Of all choices of a request together.
struct Usage {
  std::size_t prompt_tokens = 0;
  std::size_t cached_tokens = 0;  // of them, those that were not computed again
  std::size_t completion_tokens = 0;
  std::size_t reasoning_tokens = 0;  // of the completion
  // Of the choice that took longest.
  double queue_ms = 0;
  double prompt_ms = 0;
  double decode_ms = 0;
};

struct ReplyHead {
  std::string id;
  std::string model;         // as the server names it
  std::int64_t created = 0;  // seconds since 1970
  std::size_t choices = 1;
  bool stream_usage = false;
  std::size_t prompt_tokens = 0;
  // Bytes of a token, for the alternatives of logprobs.
  std::function<std::string(model::Token)> piece;
};

class ReplyFormat {
 public:
  virtual ~ReplyFormat() = default;

  // A stream: Begin, then Update and EndChoice for every choice in any order, then End; or Failure
  // at any time after Begin, as the last. Any of them may be empty.
  virtual std::string Begin() = 0;
  virtual std::string Update(std::size_t choice, const Reply& reply,
                             const Reply::Update& update) = 0;
  virtual std::string EndChoice(std::size_t choice, const Reply& reply) = 0;
  virtual std::string End(const Usage& usage) = 0;
  virtual std::string Failure(const ApiError& error) = 0;

  // One document. `replies` are those of the choices, finished.
  virtual Json Whole(std::span<const Reply* const> replies, const Usage& usage) = 0;
};

}  // namespace server
