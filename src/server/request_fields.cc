#include "server/request_fields.h"

#include <cmath>

namespace server {

std::string_view KindOf(const Json& value) {
  switch (value.type()) {
    case Json::value_t::null:
      return "null";
    case Json::value_t::object:
      return "an object";
    case Json::value_t::array:
      return "an array";
    case Json::value_t::string:
      return "a string";
    case Json::value_t::boolean:
      return "a boolean";
    default:
      return "a number";
  }
}

std::string ElementPath(std::string_view path, std::size_t index) {
  return std::format("{}[{}]", path, index);
}

RequestFields::RequestFields(const Json& object, std::string path, FirstError& error)
    : path_(std::move(path)), error_(&error) {
  if (object.is_object()) {
    object_ = &object;
  } else {
    error.Set(path_, "'{}' is {}; it must be an object", path_, KindOf(object));
  }
}

std::string RequestFields::PathOf(std::string_view name) const {
  return path_.empty() ? std::string(name) : std::format("{}.{}", path_, name);
}

const Json* RequestFields::Any(std::string_view name) const {
  if (object_ == nullptr) return nullptr;
  const auto found = object_->find(name);
  return found == object_->end() || found->is_null() ? nullptr : &*found;
}

const Json* RequestFields::Typed(std::string_view name, Json::value_t type,
                                 std::string_view wanted) const {
  const Json* value = Any(name);
  if (value == nullptr || value->type() == type) return value;
  error_->Set(PathOf(name), "'{}' is {}; it must be {}", PathOf(name), KindOf(*value), wanted);
  return nullptr;
}

std::optional<double> RequestFields::Number(std::string_view name, double least,
                                            double greatest) const {
  const Json* value = Any(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number()) {
    error_->Set(PathOf(name), "'{}' is {}; it must be a number", PathOf(name), KindOf(*value));
    return std::nullopt;
  }
  const double number = value->get<double>();
  if (!(number >= least && number <= greatest)) {
    error_->Set(PathOf(name), "'{}' is {}; it must be from {} to {}", PathOf(name), Dump(*value),
                least, greatest);
    return std::nullopt;
  }
  return number;
}

std::optional<std::int64_t> RequestFields::Integer(std::string_view name, std::int64_t least,
                                                   std::int64_t greatest) const {
  const Json* value = Any(name);
  if (value == nullptr) return std::nullopt;
  const double number = value->is_number() ? value->get<double>() : 0.5;
  if (number != std::floor(number)) {
    error_->Set(PathOf(name), "'{}' is {}; it must be an integer", PathOf(name),
                value->is_number() ? Dump(*value) : std::string(KindOf(*value)));
    return std::nullopt;
  }
  // Doubles near the ends of 64 bits are no exact integers; nobody needs those.
  if (number < static_cast<double>(least) || number > static_cast<double>(greatest)) {
    error_->Set(PathOf(name), "'{}' is {}; it must be from {} to {}", PathOf(name), Dump(*value),
                least, greatest);
    return std::nullopt;
  }
  return value->is_number_float() ? static_cast<std::int64_t>(number) : value->get<std::int64_t>();
}

std::optional<bool> RequestFields::Boolean(std::string_view name) const {
  const Json* value = Typed(name, Json::value_t::boolean, "true or false");
  return value == nullptr ? std::nullopt : std::optional(value->get<bool>());
}

std::optional<std::string> RequestFields::String(std::string_view name) const {
  const Json* value = Typed(name, Json::value_t::string, "a string");
  return value == nullptr ? std::nullopt : std::optional(value->get<std::string>());
}

const Json* RequestFields::Object(std::string_view name) const {
  return Typed(name, Json::value_t::object, "an object");
}

const Json* RequestFields::Array(std::string_view name) const {
  return Typed(name, Json::value_t::array, "an array");
}

void RequestFields::Require(std::string_view name) const {
  if (Any(name) == nullptr) error_->Set(PathOf(name), "'{}' is missing", PathOf(name));
}

}  // namespace server
