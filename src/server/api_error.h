// What went wrong with a request, independent of the protocol that reports it.
//
// Values; any thread. ErrorKinds become HTTP statuses here and nowhere else.
#pragma once

#include <expected>
#include <format>
#include <string>
#include <utility>

#include "base/result.h"

namespace server {

struct ApiError {
  int status = 400;             // HTTP
  std::string message;          // one line
  std::string param;            // the field at fault, "messages[2].role"; empty: none
  std::string code;             // OpenAI's word for it, "model_not_found"; empty: none
  int retry_after_seconds = 0;  // above 0: tell the client to come back then
};

template <class T>
using ApiResult = std::expected<T, ApiError>;

// Status 400. `param` names the field as the client wrote it.
template <class... Args>
std::unexpected<ApiError> BadRequest(std::string param, std::format_string<Args...> format,
                                     Args&&... args) {
  return std::unexpected(ApiError{.status = 400,
                                  .message = std::format(format, std::forward<Args>(args)...),
                                  .param = std::move(param)});
}

// An error from below, with the status of its kind. `param` goes with those that the client can
// correct and is dropped from others.
ApiError FromError(const base::Error& error, std::string param = "");

// 401, for a request whose key is missing or wrong.
ApiError WrongKey();
// 503, with what is being waited for.
ApiError NotReady(std::string reason);

}  // namespace server
