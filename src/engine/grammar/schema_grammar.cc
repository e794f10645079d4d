#include "engine/grammar/schema_grammar.h"

#include <algorithm>
#include <array>
#include <format>

#include "engine/grammar/schema_converter.h"
#include "model/text/grammar_syntax.h"

namespace engine {
namespace {

using base::ErrorKind;
using base::Fail;

constexpr int kMaxDepth = 64;

constexpr std::array<std::string_view, 25> kKeywords = {"type",
                                                        "enum",
                                                        "const",
                                                        "properties",
                                                        "required",
                                                        "additionalProperties",
                                                        "items",
                                                        "prefixItems",
                                                        "minItems",
                                                        "maxItems",
                                                        "anyOf",
                                                        "oneOf",
                                                        "allOf",
                                                        "$ref",
                                                        "pattern",
                                                        "format",
                                                        "minLength",
                                                        "maxLength",
                                                        "minimum",
                                                        "maximum",
                                                        "exclusiveMinimum",
                                                        "exclusiveMaximum",
                                                        "additionalItems",
                                                        "uniqueItems",
                                                        "minProperties"};

// The type that keywords are about, for a schema that does not name one.
constexpr std::array<std::pair<std::string_view, std::string_view>, 15> kTypeOfKeyword = {
    {{"properties", "object"},
     {"required", "object"},
     {"additionalProperties", "object"},
     {"items", "array"},
     {"prefixItems", "array"},
     {"minItems", "array"},
     {"maxItems", "array"},
     {"pattern", "string"},
     {"format", "string"},
     {"minLength", "string"},
     {"maxLength", "string"},
     {"minimum", "number"},
     {"maximum", "number"},
     {"exclusiveMinimum", "number"},
     {"exclusiveMaximum", "number"}}};

// Values of these that restrict nothing.
bool RestrictsNothing(std::string_view keyword, const Schema& value) {
  return (keyword == "uniqueItems" && value == Schema(false)) ||
         (keyword == "minProperties" && value == Schema(0)) ||
         (keyword == "additionalItems" && value.is_boolean());
}

base::Result<void> CheckKeywords(const Schema& schema, const std::string& path) {
  for (const auto& [keyword, value] : schema.items()) {
    if (IsAnnotation(keyword)) continue;
    const bool known = std::ranges::find(kKeywords, keyword) != kKeywords.end();
    const bool vacuous =
        keyword == "uniqueItems" || keyword == "minProperties" || keyword == "additionalItems";
    if (!known || (vacuous && !RestrictsNothing(keyword, value))) {
      return Fail(ErrorKind::kUnsupported, "the JSON schema keyword '{}' at {} is not supported",
                  keyword, path);
    }
  }
  return {};
}

// Whether it has keywords other than annotations and `except`.
bool HasMore(const Schema& schema, std::string_view except) {
  for (const auto& [keyword, value] : schema.items()) {
    if (keyword != except && !IsAnnotation(keyword) && !RestrictsNothing(keyword, value)) {
      return true;
    }
  }
  return false;
}

Schema Without(const Schema& schema, std::string_view keyword) {
  Schema rest = Schema::object();
  for (const auto& [name, value] : schema.items()) {
    if (name != keyword) rest[name] = value;
  }
  return rest;
}

bool HasType(const Schema& value, std::string_view type) {
  if (type == "object") return value.is_object();
  if (type == "array") return value.is_array();
  if (type == "string") return value.is_string();
  if (type == "boolean") return value.is_boolean();
  if (type == "null") return value.is_null();
  if (type == "integer") return value.is_number_integer();
  return type == "number" && value.is_number();
}

bool HasOneOfTypes(const Schema& value, const Schema& types) {
  const Schema list = types.is_array() ? types : Schema::array({types});
  return std::ranges::any_of(list, [&](const Schema& type) {
    return type.is_string() && HasType(value, type.get_ref<const std::string&>());
  });
}

}  // namespace

base::Result<std::string> SchemaGrammar(const nlohmann::ordered_json& schema) {
  return SchemaConverter(schema).Convert();
}

std::string JsonObjectGrammar() {
  const Schema schema = {{"type", "object"}};
  return SchemaConverter(schema).Convert().value_or(std::string());
}

base::Result<std::string> SchemaConverter::Convert() {
  auto rule = Visit(root_, "#");
  if (!rule) return rule;
  std::string grammar = text_.Finish(*rule);
  if (grammar.size() > model::kMaxGrammarBytes) {
    return Fail(ErrorKind::kUnsupported,
                "the JSON schema gives a grammar of {} bytes; it may be {}", grammar.size(),
                model::kMaxGrammarBytes);
  }
  return grammar;
}

SchemaConverter::Body SchemaConverter::Visit(const Schema& schema, const std::string& path) {
  if (schema == Schema(true)) return AnyValue();
  if (schema == Schema(false)) {
    return Fail(ErrorKind::kInvalidInput, "the schema 'false' at {} admits nothing", path);
  }
  if (!schema.is_object()) {
    return Fail(ErrorKind::kInvalidInput, "the schema at {} is neither an object nor a boolean",
                path);
  }
  if (depth_ >= kMaxDepth || text_.size() > model::kMaxGrammarBytes) {
    return Fail(ErrorKind::kUnsupported, "the JSON schema is too deep or too large at {}",
                path.substr(0, 200));
  }
  if (auto ok = CheckKeywords(schema, path); !ok) return base::Forward(ok);
  ++depth_;
  Body body = VisitKeywords(schema, path);
  --depth_;
  return body;
}

SchemaConverter::Body SchemaConverter::VisitKeywords(const Schema& schema,
                                                     const std::string& path) {
  if (const auto reference = schema.find("$ref"); reference != schema.end()) {
    if (!reference->is_string()) {
      return Fail(ErrorKind::kInvalidInput, "'$ref' at {} is not a string", path);
    }
    if (!HasMore(schema, "$ref")) return VisitReference(reference->get<std::string>(), path);
    auto inlined = Inlined(schema, path);
    if (!inlined) return base::Forward(inlined);
    return Visit(*inlined, path);
  }
  if (schema.contains("allOf")) return VisitAllOf(schema, path);
  if (schema.contains("anyOf")) return VisitAnyOf(schema, "anyOf", path);
  if (schema.contains("oneOf")) return VisitAnyOf(schema, "oneOf", path);
  if (schema.contains("const") || schema.contains("enum")) return VisitValues(schema, path);
  if (const auto types = schema.find("type"); types != schema.end()) {
    return VisitTypes(schema, *types, path);
  }
  std::string_view implied;
  for (const auto& [keyword, type] : kTypeOfKeyword) {
    if (!schema.contains(keyword)) continue;
    if (!implied.empty() && implied != type) {
      return Fail(ErrorKind::kUnsupported,
                  "a schema without 'type' for both {} and {} at {} is not supported", implied,
                  type, path);
    }
    implied = type;
  }
  if (implied.empty()) return AnyValue();
  return VisitType(schema, implied, path);
}

SchemaConverter::Body SchemaConverter::VisitReference(const std::string& reference,
                                                      const std::string& path) {
  if (const auto found = references_.find(reference); found != references_.end()) {
    if (!found->second.done && found->second.entered == consumed_) {
      return Fail(ErrorKind::kInvalidInput,
                  "'$ref' to '{}' at {} leads to itself without anything between", reference, path);
    }
    return found->second.rule;
  }
  auto target = Resolve(root_, reference, path);
  if (!target) return base::Forward(target);
  const std::string rule = text_.Reserve(reference.substr(reference.rfind('/') + 1));
  references_[reference] = {.rule = rule, .entered = consumed_};
  auto body = Visit(**target, reference);
  if (!body) return body;
  text_.Define(rule, *body);
  references_[reference].done = true;
  return rule;
}

base::Result<Schema> SchemaConverter::Inlined(const Schema& schema, const std::string& path,
                                              int depth) {
  const auto reference = schema.is_object() ? schema.find("$ref") : schema.end();
  if (reference == schema.end()) return schema;
  if (depth >= kMaxDepth || !reference->is_string()) {
    return Fail(ErrorKind::kInvalidInput, "'$ref' at {} is no string or leads to itself", path);
  }
  auto target = Resolve(root_, reference->get<std::string>(), path);
  if (!target) return base::Forward(target);
  auto inlined = Inlined(**target, path, depth + 1);
  if (!inlined) return inlined;
  return Merge(*inlined, Without(schema, "$ref"), path);
}

SchemaConverter::Body SchemaConverter::VisitAllOf(const Schema& schema, const std::string& path) {
  const Schema& list = schema["allOf"];
  if (!list.is_array() || list.empty()) {
    return Fail(ErrorKind::kInvalidInput, "'allOf' at {} is not a list of schemas", path);
  }
  if (list.size() == 1 && !HasMore(schema, "allOf")) return Visit(list.front(), path + "/allOf/0");
  Schema merged = Without(schema, "allOf");
  for (std::size_t i = 0; i < list.size(); ++i) {
    const std::string part = std::format("{}/allOf/{}", path, i);
    auto inlined = Inlined(list[i], part);
    if (!inlined) return base::Forward(inlined);
    auto joined = Merge(merged, *inlined, part);
    if (!joined) return base::Forward(joined);
    merged = *std::move(joined);
  }
  return Visit(merged, path);
}

SchemaConverter::Body SchemaConverter::VisitAnyOf(const Schema& schema, std::string_view keyword,
                                                  const std::string& path) {
  const Schema& list = schema[std::string(keyword)];
  if (!list.is_array() || list.empty()) {
    return Fail(ErrorKind::kInvalidInput, "'{}' at {} is not a list of schemas", keyword, path);
  }
  const Schema beside = Without(schema, keyword);
  const bool alone = !HasMore(schema, keyword);
  std::string body;
  for (std::size_t i = 0; i < list.size(); ++i) {
    const std::string part = std::format("{}/{}/{}", path, keyword, i);
    Body rule;
    if (alone) {
      rule = Visit(list[i], part);
    } else {
      auto inlined = Inlined(list[i], part);
      if (!inlined) return base::Forward(inlined);
      auto joined = Merge(beside, *inlined, part);
      if (!joined) return base::Forward(joined);
      rule = Visit(*joined, part);
    }
    if (!rule) return rule;
    body += (body.empty() ? "" : " | ") + *rule;
  }
  return text_.Add("any", body);
}

SchemaConverter::Body SchemaConverter::VisitValues(const Schema& schema, const std::string& path) {
  for (const auto& [keyword, value] : schema.items()) {
    if (IsAnnotation(keyword) || keyword == "const" || keyword == "enum" || keyword == "type") {
      continue;
    }
    return Fail(ErrorKind::kUnsupported, "'{}' beside enum or const at {} is not supported",
                keyword, path);
  }
  Schema values = schema.contains("enum") ? schema["enum"] : Schema::array({schema["const"]});
  if (!values.is_array()) {
    return Fail(ErrorKind::kInvalidInput, "'enum' at {} is not a list", path);
  }
  std::string body;
  for (const Schema& value : values) {
    if (schema.contains("const") && value != schema["const"]) continue;
    if (schema.contains("type") && !HasOneOfTypes(value, schema["type"])) continue;
    const std::string text = value.dump(-1, ' ', false, Schema::error_handler_t::replace);
    body += (body.empty() ? "" : " | ") + Literal(text);
  }
  if (body.empty()) {
    return Fail(ErrorKind::kInvalidInput, "no value of the enum at {} fits", path);
  }
  return text_.Add("value-of", body);
}

SchemaConverter::Body SchemaConverter::VisitTypes(const Schema& schema, const Schema& types,
                                                  const std::string& path) {
  if (types.is_string()) return VisitType(schema, types.get_ref<const std::string&>(), path);
  if (!types.is_array() || types.empty()) {
    return Fail(ErrorKind::kInvalidInput, "'type' at {} is neither a name nor a list of names",
                path);
  }
  std::string body;
  for (const Schema& type : types) {
    if (!type.is_string()) {
      return Fail(ErrorKind::kInvalidInput, "'type' at {} is not a list of names", path);
    }
    auto rule = VisitType(schema, type.get_ref<const std::string&>(), path);
    if (!rule) return rule;
    body += (body.empty() ? "" : " | ") + *rule;
  }
  return text_.Add("type", body);
}

SchemaConverter::Body SchemaConverter::VisitType(const Schema& schema, std::string_view type,
                                                 const std::string& path) {
  if (type == "object") return Object(schema, path);
  if (type == "array") return Array(schema, path);
  if (type == "string") return String(schema, path);
  if (type == "integer" || type == "number") return Number(schema, type == "integer", path);
  if (type == "boolean") return text_.Add("boolean", "\"true\" | \"false\"");
  if (type == "null") return text_.Add("null", "\"null\"");
  return Fail(ErrorKind::kInvalidInput,
              "'type' is '{}' at {}; use object, array, string, number, integer, boolean or null",
              type, path);
}

}  // namespace engine
