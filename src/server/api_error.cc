#include "server/api_error.h"

#include "base/error_status.h"

namespace server {
namespace {

constexpr int kRetryAfterSeconds = 1;

}  // namespace

ApiError FromError(const base::Error& error, std::string param) {
  ApiError api{.status = base::StatusOf(error.kind).http, .message = error.message};
  if (api.status == 400) api.param = std::move(param);
  if (api.status == 429) {
    api.code = "rate_limit_exceeded";
    api.retry_after_seconds = kRetryAfterSeconds;
  }
  return api;
}

ApiError WrongKey() {
  return {.status = 401,
          .message =
              "the API key is missing or wrong; send it as \"Authorization: Bearer KEY\" or "
              "\"x-api-key: KEY\"",
          .code = "invalid_api_key"};
}

ApiError NotReady(std::string reason) {
  return {.status = 503, .message = std::move(reason), .retry_after_seconds = kRetryAfterSeconds};
}

}  // namespace server
