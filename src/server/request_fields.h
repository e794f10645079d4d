// Reads typed fields of a JSON request and remembers the first that is wrong.
//
// A reader answers "absent" for a field that is absent, null or wrong, so that parsers read field
// after field and ask once, at the end, whether there was an error. Null means absent, as clients
// write it for fields that they do not set. One thread; the JSON outlives the reader.
#pragma once

#include <cstdint>
#include <format>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "server/api_error.h"
#include "server/json.h"

namespace server {

class FirstError {
 public:
  template <class... Args>
  void Set(std::string param, std::format_string<Args...> format, Args&&... args) {
    if (!error_) error_ = BadRequest(std::move(param), format, std::forward<Args>(args)...).error();
  }
  void Set(ApiError error) {
    if (!error_) error_ = std::move(error);
  }
  const std::optional<ApiError>& error() const { return error_; }

 private:
  std::optional<ApiError> error_;
};

class RequestFields {
 public:
  // Reads the members of `object`, which the request has at `path` (empty: the request itself).
  // Anything but an object is an error at `path` and has no members.
  RequestFields(const Json& object, std::string path, FirstError& error);

  // The member, whatever its type; nullptr when absent or null.
  const Json* Any(std::string_view name) const;
  // Numbers outside [least, greatest] are errors. An integer may be written 3.0.
  std::optional<double> Number(std::string_view name, double least, double greatest) const;
  std::optional<std::int64_t> Integer(std::string_view name, std::int64_t least,
                                      std::int64_t greatest) const;
  std::optional<bool> Boolean(std::string_view name) const;
  std::optional<std::string> String(std::string_view name) const;
  // nullptr also for another type, which is an error.
  const Json* Object(std::string_view name) const;
  const Json* Array(std::string_view name) const;

  // Makes an absent or null member an error.
  void Require(std::string_view name) const;
  // "path.name", for errors of the caller's own.
  std::string PathOf(std::string_view name) const;
  FirstError& error() const { return *error_; }

 private:
  const Json* Typed(std::string_view name, Json::value_t type, std::string_view wanted) const;

  const Json* object_ = nullptr;
  std::string path_;
  FirstError* error_;
};

// "path[3]"
std::string ElementPath(std::string_view path, std::size_t index);
// "an object", "a string" ... : what `value` is, for messages.
std::string_view KindOf(const Json& value);

}  // namespace server
