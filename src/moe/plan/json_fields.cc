#include "moe/plan/json_fields.h"

#include <algorithm>
#include <cctype>
#include <format>
#include <limits>
#include <utility>

#include "base/file.h"
#include "base/quote.h"

namespace moe {

using base::ErrorKind;
using base::Fail;
using base::Forward;
using nlohmann::json;

namespace {

constexpr std::size_t kMaxDepth = 8;

// What a message shows of a value from a file: short, one line.
std::string Excerpt(const json& value) {
  if (const auto* text = value.get_ptr<const std::string*>()) return base::Quote(*text);
  if (value.is_structured()) {
    return std::format("{} of {} elements", value.type_name(), value.size());
  }
  return value.dump();
}

// Nesting is counted before parsing, because a file of brackets alone would take many times its
// size as a document.
std::size_t Depth(std::string_view text) {
  std::size_t depth = 0, deepest = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') {
        ++i;
      } else if (c == '"') {
        in_string = false;
      }
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      deepest = std::max(deepest, ++depth);
    } else if ((c == ']' || c == '}') && depth > 0) {
      --depth;
    }
  }
  return deepest;
}

// `text` as it is if it is one plain word, else quoted.
std::string Plain(const std::string& text) {
  const auto plain = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; };
  return !text.empty() && text.size() <= 40 && std::ranges::all_of(text, plain) ? text
                                                                                : base::Quote(text);
}

// `text` with every byte that is not UTF-8 replaced.
std::string Utf8(const std::string& text) {
  const std::string quoted = json(text).dump(-1, ' ', false, json::error_handler_t::replace);
  return json::parse(quoted, nullptr, false).get<std::string>();
}

}  // namespace

std::unexpected<base::Error> JsonFields::Refuse(std::string_view key,
                                                std::string_view problem) const {
  return Fail(ErrorKind::kCorruptModel, "{} {}, field {}{}: {}; {}", source_.kind,
              base::Quote(source_.path), prefix_, key, problem, source_.remedy);
}

base::Result<const json*> JsonFields::Value(std::string_view key) const {
  const auto found = object_.find(key);
  if (found == object_.end()) return Refuse(key, "missing");
  return &*found;
}

base::Result<std::string> JsonFields::Text(std::string_view key) const {
  const auto value = Value(key);
  if (!value) return std::unexpected(value.error());
  const auto* text = (*value)->get_ptr<const std::string*>();
  if (text == nullptr) return Refuse(key, std::format("{} is not text", Excerpt(**value)));
  return *text;
}

base::Result<std::uint64_t> JsonFields::Number(std::string_view key, std::uint64_t least,
                                               std::uint64_t most) const {
  const auto value = Value(key);
  if (!value) return std::unexpected(value.error());
  const auto* number = (*value)->get_ptr<const std::uint64_t*>();
  if (number == nullptr || *number < least || *number > most) {
    return Refuse(
        key, std::format("{} is not a whole number from {} to {}", Excerpt(**value), least, most));
  }
  return *number;
}

base::Result<std::uint64_t> JsonFields::Hash(std::string_view key) const {
  const auto text = Text(key);
  if (!text) return std::unexpected(text.error());
  std::uint64_t value = 0;
  bool good = text->size() == 16;
  for (const char c : *text) {
    const bool digit = c >= '0' && c <= '9';
    good = good && (digit || (c >= 'a' && c <= 'f'));
    value = value << 4 | static_cast<std::uint64_t>(digit ? c - '0' : c - 'a' + 10);
  }
  if (!good) {
    return Refuse(key,
                  std::format("{} is not 16 lower-case hexadecimal digits", base::Quote(*text)));
  }
  return value;
}

base::Result<JsonFields> JsonFields::Object(std::string_view key) const {
  const auto value = Value(key);
  if (!value) return std::unexpected(value.error());
  if (!(*value)->is_object()) {
    return Refuse(key, std::format("{} is not an object", Excerpt(**value)));
  }
  return JsonFields(source_, **value, std::format("{}{}.", prefix_, key));
}

base::Result<const json*> JsonFields::Array(std::string_view key, std::size_t least,
                                            std::size_t most) const {
  const auto value = Value(key);
  if (!value) return std::unexpected(value.error());
  if (!(*value)->is_array()) {
    return Refuse(key, std::format("{} is not an array", Excerpt(**value)));
  }
  const std::size_t size = (*value)->size();
  if (size < least || size > most) {
    return Refuse(key, least == most
                           ? std::format("has {} elements, expected {}", size, least)
                           : std::format("has {} elements, expected {} to {}", size, least, most));
  }
  return *value;
}

base::Result<json> ParseJsonFile(std::string_view text, std::string_view format,
                                 std::uint64_t version, const JsonFields::Source& source) {
  if (const std::size_t depth = Depth(text); depth > kMaxDepth) {
    return Fail(ErrorKind::kCorruptModel, "{} {}: nested {} deep, a {} has at most {}; {}",
                source.kind, base::Quote(source.path), depth, source.kind, kMaxDepth,
                source.remedy);
  }
  json document = json::parse(text, nullptr, false);
  if (document.is_discarded() || !document.is_object()) {
    return Fail(ErrorKind::kCorruptModel, "{} {}: not a JSON {}; {}", source.kind,
                base::Quote(source.path), document.is_discarded() ? "document" : "object",
                source.remedy);
  }
  const JsonFields fields(source, document);
  const auto found_format = fields.Text("format");
  if (!found_format) return std::unexpected(found_format.error());
  if (*found_format != format) {
    return fields.Refuse("format",
                         std::format("{} is not \"{}\"", base::Quote(*found_format), format));
  }
  const auto found_version = fields.Number("version", 1, std::numeric_limits<std::uint64_t>::max());
  if (!found_version) return std::unexpected(found_version.error());
  if (*found_version != version) {
    return fields.Refuse("version",
                         std::format("{} is not supported, only {} is", *found_version, version));
  }
  return document;
}

base::Result<std::string> ReadJsonFile(const JsonFields::Source& source) {
  auto text = base::ReadFile(source.path, base::Bytes(kMaxJsonFileBytes));
  if (!text) {
    return Fail(ErrorKind::kCorruptModel, "{} {}; {}", source.kind, text.error().message,
                source.remedy);
  }
  return text;
}

std::string PrintJsonFile(const nlohmann::ordered_json& document) {
  const auto compact = [](const nlohmann::ordered_json& value) {
    return value.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  };
  std::string text = "{";
  const char* separator = "\n";
  for (const auto& [key, value] : document.items()) {
    text += std::format("{}  {}: ", std::exchange(separator, ",\n"), compact(key));
    if (!value.is_array()) {
      text += compact(value);
      continue;
    }
    const char* inner = "[\n";
    for (const auto& element : value) {
      text += std::format("{}    {}", std::exchange(inner, ",\n"), compact(element));
    }
    text += value.empty() ? "[]" : "\n  ]";
  }
  return text + "\n}\n";
}

nlohmann::ordered_json IdentityToJson(const ModelIdentity& identity) {
  return {{"architecture", identity.architecture},
          {"name", identity.name},
          {"quantisation", identity.quantisation},
          {"num_layers", identity.num_layers},
          {"num_experts", identity.num_experts},
          {"directory_hash", std::format("{:016x}", identity.directory_hash)},
          {"shape_hash", std::format("{:016x}", identity.shape_hash)}};
}

base::Result<ModelIdentity> IdentityFromJson(const JsonFields& fields) {
  constexpr std::uint64_t kMost = std::numeric_limits<std::uint32_t>::max();
  auto architecture = fields.Text("architecture");
  if (!architecture) return Forward(architecture);
  auto name = fields.Text("name");
  if (!name) return Forward(name);
  auto quantisation = fields.Text("quantisation");
  if (!quantisation) return Forward(quantisation);
  auto num_layers = fields.Number("num_layers", 1, kMost);
  if (!num_layers) return Forward(num_layers);
  auto num_experts = fields.Number("num_experts", 1, kMost);
  if (!num_experts) return Forward(num_experts);
  auto directory_hash = fields.Hash("directory_hash");
  if (!directory_hash) return Forward(directory_hash);
  auto shape_hash = fields.Hash("shape_hash");
  if (!shape_hash) return Forward(shape_hash);
  return ModelIdentity{.architecture = std::move(*architecture),
                       .name = std::move(*name),
                       .quantisation = std::move(*quantisation),
                       .num_layers = static_cast<std::uint32_t>(*num_layers),
                       .num_experts = static_cast<std::uint32_t>(*num_experts),
                       .directory_hash = *directory_hash,
                       .shape_hash = *shape_hash};
}

ModelIdentity AsWritten(const ModelIdentity& identity) {
  ModelIdentity written = identity;
  written.architecture = Utf8(identity.architecture);
  written.name = Utf8(identity.name);
  written.quantisation = Utf8(identity.quantisation);
  return written;
}

std::string DescribeIdentity(const ModelIdentity& identity) {
  return std::format("{} {} {}, {} layers x {} experts, directory {:016x}",
                     Plain(identity.architecture), base::Quote(identity.name),
                     Plain(identity.quantisation), identity.num_layers, identity.num_experts,
                     identity.directory_hash);
}

}  // namespace moe
