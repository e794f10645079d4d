#include "engine/grammar/schema_merge.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

namespace engine {
namespace {

using base::ErrorKind;
using base::Fail;
using base::Result;

constexpr std::array<std::string_view, 14> kAnnotations = {
    "title",    "description", "default",     "examples",   "example",  "$schema",   "$id",
    "$comment", "$defs",       "definitions", "deprecated", "readOnly", "writeOnly", "$anchor"};

// "~1" is '/', "~0" is '~', and what a URI escapes.
std::string Unescape(std::string_view part) {
  std::string text;
  for (std::size_t i = 0; i < part.size(); ++i) {
    if (part[i] == '~' && i + 1 < part.size() && (part[i + 1] == '0' || part[i + 1] == '1')) {
      text += part[++i] == '0' ? '~' : '/';
      continue;
    }
    unsigned value = 0;
    if (part[i] == '%' && i + 2 < part.size() &&
        std::from_chars(part.data() + i + 1, part.data() + i + 3, value, 16).ptr ==
            part.data() + i + 3) {
      text += static_cast<char>(value);
      i += 2;
      continue;
    }
    text += part[i];
  }
  return text;
}

const Schema* Step(const Schema& from, const std::string& name) {
  if (from.is_object()) {
    const auto found = from.find(name);
    return found == from.end() ? nullptr : &*found;
  }
  std::size_t index = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), index);
  const bool is_index = error == std::errc() && end == name.data() + name.size();
  return from.is_array() && is_index && index < from.size() ? &from[index] : nullptr;
}

Schema AsList(const Schema& one) { return one.is_array() ? one : Schema::array({one}); }

// A type of `types` that values of `type` have.
bool Admits(const Schema& types, const Schema& type) {
  return std::ranges::any_of(types, [&](const Schema& one) {
    return one == type || (one == "number" && type == "integer");
  });
}

Result<void> MergeType(Schema& into, const Schema& other, const std::string& path) {
  const Schema mine = AsList(into);
  const Schema theirs = AsList(other);
  Schema both = Schema::array();
  for (const Schema& type : mine) {
    if (Admits(theirs, type)) both.push_back(type);
  }
  for (const Schema& type : theirs) {
    if (Admits(mine, type) && std::ranges::find(both, type) == both.end()) both.push_back(type);
  }
  if (both.empty()) {
    return Fail(ErrorKind::kInvalidInput, "no value has both types that are asked for at {}", path);
  }
  into = both.size() == 1 ? both.front() : both;
  return {};
}

Result<void> MergeEnum(Schema& into, const Schema& other, const std::string& path) {
  Schema both = Schema::array();
  for (const Schema& value : into) {
    if (std::ranges::find(other, value) != other.end()) both.push_back(value);
  }
  if (both.empty()) {
    return Fail(ErrorKind::kInvalidInput, "no value is in both enums at {}", path);
  }
  into = std::move(both);
  return {};
}

Schema BothOf(const Schema& a, const Schema& b) {
  return a == b ? a : Schema{{"allOf", Schema::array({a, b})}};
}

void MergeProperties(Schema& into, const Schema& other) {
  for (const auto& [name, schema] : other.items()) {
    into[name] = into.contains(name) ? BothOf(into[name], schema) : schema;
  }
}

void MergeRequired(Schema& into, const Schema& other) {
  for (const Schema& name : other) {
    if (std::ranges::find(into, name) == into.end()) into.push_back(name);
  }
}

bool IsLowerBound(std::string_view keyword) {
  return keyword == "minimum" || keyword == "exclusiveMinimum" || keyword == "minLength" ||
         keyword == "minItems";
}

bool IsUpperBound(std::string_view keyword) {
  return keyword == "maximum" || keyword == "exclusiveMaximum" || keyword == "maxLength" ||
         keyword == "maxItems";
}

Result<void> MergeKeyword(Schema& into, const std::string& keyword, const Schema& other,
                          const std::string& path) {
  if (into == other) return {};
  if (keyword == "type") return MergeType(into, other, path);
  if (keyword == "enum" && into.is_array() && other.is_array()) {
    return MergeEnum(into, other, path);
  }
  if (keyword == "properties" && into.is_object() && other.is_object()) {
    MergeProperties(into, other);
    return {};
  }
  if (keyword == "required" && into.is_array() && other.is_array()) {
    MergeRequired(into, other);
    return {};
  }
  if (keyword == "allOf" && into.is_array() && other.is_array()) {
    into.insert(into.end(), other.begin(), other.end());
    return {};
  }
  if (keyword == "items" && !into.is_array() && !other.is_array()) {
    into = BothOf(into, other);
    return {};
  }
  if (into.is_number() && other.is_number()) {
    if (IsLowerBound(keyword)) into = std::max(into, other);
    if (IsUpperBound(keyword)) into = std::min(into, other);
    if (IsLowerBound(keyword) || IsUpperBound(keyword)) return {};
  }
  return Fail(ErrorKind::kUnsupported, "two different '{}' for one value at {} are not supported",
              keyword, path);
}

// Whether `closed`, which takes no additional properties, leaves those of `other` out.
bool LeavesOut(const Schema& closed, const Schema& other) {
  const auto additional = closed.find("additionalProperties");
  if (additional == closed.end() || *additional != Schema(false)) return false;
  const auto theirs = other.find("properties");
  if (theirs == other.end() || !theirs->is_object()) return false;
  const auto mine = closed.find("properties");
  for (const auto& [name, schema] : theirs->items()) {
    if (mine == closed.end() || !mine->contains(name)) return true;
  }
  return false;
}

}  // namespace

bool IsAnnotation(std::string_view keyword) {
  return keyword.starts_with("x-") ||
         std::ranges::find(kAnnotations, keyword) != kAnnotations.end();
}

Result<const Schema*> Resolve(const Schema& root, const std::string& reference,
                              const std::string& path) {
  if (reference != "#" && !reference.starts_with("#/")) {
    return Fail(ErrorKind::kUnsupported,
                "'$ref' to '{}' at {} is not supported; only '#' and '#/…', in the same schema",
                reference, path);
  }
  const Schema* at = &root;
  std::string_view rest = std::string_view(reference).substr(1);
  while (at != nullptr && !rest.empty()) {
    rest.remove_prefix(1);
    const std::string_view part = rest.substr(0, rest.find('/'));
    rest.remove_prefix(part.size());
    at = Step(*at, Unescape(part));
  }
  if (at == nullptr) {
    return Fail(ErrorKind::kInvalidInput, "'$ref' to '{}' at {} points to nothing", reference,
                path);
  }
  return at;
}

Result<Schema> Merge(const Schema& a, const Schema& b, const std::string& path) {
  if (a.is_boolean() || b.is_boolean()) {
    if (a == Schema(true)) return b;
    if (b == Schema(true)) return a;
    return Fail(ErrorKind::kInvalidInput, "the schema 'false' at {} admits nothing", path);
  }
  if (!a.is_object() || !b.is_object()) {
    return Fail(ErrorKind::kInvalidInput, "the schema at {} is not an object", path);
  }
  if (LeavesOut(a, b) || LeavesOut(b, a)) {
    return Fail(ErrorKind::kUnsupported,
                "'additionalProperties': false beside another schema's properties at {} is not "
                "supported",
                path);
  }
  Schema merged = a;
  for (const auto& [keyword, value] : b.items()) {
    if (!merged.contains(keyword)) {
      merged[keyword] = value;
    } else if (!IsAnnotation(keyword)) {
      if (auto ok = MergeKeyword(merged[keyword], keyword, value, path); !ok) {
        return base::Forward(ok);
      }
    }
  }
  return merged;
}

}  // namespace engine
