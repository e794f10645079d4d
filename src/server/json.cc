#include "server/json.h"

#include <algorithm>
#include <string>

namespace server {
namespace {

// How deep containers nest, brackets inside strings not counted. Malformed text gives any number.
std::size_t NestingOf(std::string_view text) {
  std::size_t depth = 0;
  std::size_t deepest = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      deepest = std::max(deepest, ++depth);
    } else if ((c == '}' || c == ']') && depth > 0) {
      --depth;
    }
  }
  return deepest;
}

// nlohmann's "[json.exception.parse_error.101] parse error at line 1, column 2: syntax error ..."
// without its own classification.
std::string WithoutPrefix(std::string message) {
  const std::size_t end = message.find("] ");
  if (message.starts_with('[') && end != std::string::npos) message.erase(0, end + 2);
  std::ranges::replace(message, '\n', ' ');
  return message;
}

}  // namespace

ApiResult<Json> ParseRequestBody(std::string_view body) {
  if (body.find_first_not_of(" \t\r\n") == std::string_view::npos) {
    return BadRequest("", "the request body is empty; send a JSON object");
  }
  if (const std::size_t depth = NestingOf(body); depth > kMaxJsonDepth) {
    return BadRequest("", "the request body nests {} levels deep; at most {} are accepted", depth,
                      kMaxJsonDepth);
  }
  Json parsed;
  try {
    parsed = Json::parse(body);
  } catch (const Json::exception& error) {
    // The message may quote bytes of the body that are no UTF-8; Dump makes them harmless.
    return BadRequest("", "the request body is not valid JSON: {}", WithoutPrefix(error.what()));
  }
  if (!parsed.is_object()) {
    return BadRequest("", "the request body is a JSON {}; send a JSON object", parsed.type_name());
  }
  return parsed;
}

Json ParseOrDiscard(std::string_view text) {
  if (NestingOf(text) > kMaxJsonDepth) return Json(Json::value_t::discarded);
  return Json::parse(text, nullptr, /*allow_exceptions=*/false);
}

std::string Dump(const Json& value) {
  return value.dump(-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

std::string EscapeForJson(std::string_view text) {
  const std::string quoted = Dump(Json(text));
  return quoted.substr(1, quoted.size() - 2);
}

}  // namespace server
