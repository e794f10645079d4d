// JSON of requests and responses: parsed with limits, written without throwing. Pure; any thread.
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "server/api_error.h"

namespace server {

// Keeps keys in the order of writing; templates render tools in the order their client gave.
using Json = nlohmann::ordered_json;

// Containers inside containers that a request may have. Deeper ones would be a recursion of their
// own depth in everybody who walks them.
inline constexpr std::size_t kMaxJsonDepth = 100;

// The object that a request body holds. Errors, status 400 and without a param: no JSON (with line
// and column), invalid UTF-8, a number out of range, nesting beyond kMaxJsonDepth, no object.
ApiResult<Json> ParseRequestBody(std::string_view body);

// `text` as JSON; null-like `discarded` value when it is none.
Json ParseOrDiscard(std::string_view text);

// One line. Bytes that are no UTF-8 become U+FFFD.
std::string Dump(const Json& value);

// A string's inside, escaped for a place between double quotes. `text` is valid UTF-8.
std::string EscapeForJson(std::string_view text);

}  // namespace server
