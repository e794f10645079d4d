// Rules for values of each type.
#include <algorithm>
#include <cmath>
#include <format>
#include <map>

#include "engine/grammar/pattern_rules.h"
#include "engine/grammar/schema_converter.h"

namespace engine {
namespace {

using base::ErrorKind;
using base::Fail;

const std::map<std::string, std::string, std::less<>>& Formats() {
  static const std::string date =
      "[0-9]{4} \"-\" (\"0\" [1-9] | \"1\" [0-2]) \"-\" (\"0\" [1-9] | [1-2] [0-9] | \"3\" [0-1])";
  static const std::string time =
      "([01] [0-9] | \"2\" [0-3]) \":\" [0-5] [0-9] \":\" [0-5] [0-9] (\".\" [0-9]{1,9})? "
      "(\"Z\" | [-+] ([01] [0-9] | \"2\" [0-3]) \":\" [0-5] [0-9])";
  static const std::string byte =
      "(\"25\" [0-5] | \"2\" [0-4] [0-9] | \"1\" [0-9]{2} | [1-9]? [0-9])";
  static const std::map<std::string, std::string, std::less<>> formats = {
      {"date", date},
      {"time", time},
      {"date-time", date + " \"T\" " + time},
      {"uuid",
       "[0-9a-fA-F]{8} \"-\" [0-9a-fA-F]{4} \"-\" [0-9a-fA-F]{4} \"-\" [0-9a-fA-F]{4} \"-\" "
       "[0-9a-fA-F]{12}"},
      {"ipv4", std::format("{0} \".\" {0} \".\" {0} \".\" {0}", byte)}};
  return formats;
}

std::string Quoted(const std::string& body) { return "\"\\\"\" " + body + " \"\\\"\""; }

}  // namespace

std::string SchemaConverter::Character() {
  return text_.Add("char",
                   "[^\"\\\\\\x00-\\x1F] | \"\\\\\" ([\"\\\\/bfnrt] | \"u\" [0-9a-fA-F]{4})");
}

std::string SchemaConverter::AnyString() { return text_.Add("string", Quoted(Character() + "*")); }

std::string SchemaConverter::AnyValue() {
  if (!any_value_.empty()) return any_value_;
  any_value_ = text_.Reserve("value");
  const std::string space = Space();
  const std::string pair = Pair(AnyString(), any_value_);
  const std::string object = text_.Add(
      "object", std::format("\"{{\" {0} ({1} ({0} \",\" {0} {1})* {0})? \"}}\"", space, pair));
  const std::string array = text_.Add(
      "array", std::format("\"[\" {0} ({1} ({0} \",\" {0} {1})* {0})? \"]\"", space, any_value_));
  text_.Define(any_value_,
               std::format("{} | {} | {} | {} | \"true\" | \"false\" | \"null\"", object, array,
                           AnyString(), text_.Add("number", NumberBody({}))));
  return any_value_;
}

std::string SchemaConverter::Pair(const std::string& key_body, const std::string& value) {
  return text_.Add("pair", std::format("{0} {1} \":\" {1} {2}", key_body, Space(), value));
}

base::Result<std::vector<SchemaConverter::Member>> SchemaConverter::Members(
    const Schema& schema, const std::string& path) {
  const Schema properties = schema.value("properties", Schema::object());
  const Schema required = schema.value("required", Schema::array());
  if (!properties.is_object() || !required.is_array()) {
    return Fail(ErrorKind::kInvalidInput, "'properties' or 'required' at {} has the wrong type",
                path);
  }
  std::vector<std::string> names;
  for (const Schema& name : required) {
    if (!name.is_string()) {
      return Fail(ErrorKind::kInvalidInput, "'required' at {} holds something that is no name",
                  path);
    }
    names.push_back(name.get<std::string>());
  }
  const auto pair = [&](const std::string& name, const std::string& value) {
    return Pair(Literal(Schema(name).dump(-1, ' ', false, Schema::error_handler_t::replace)),
                value);
  };
  std::vector<Member> members;
  for (const auto& [name, value] : properties.items()) {
    auto rule = Visit(value, path + "/properties/" + name);
    if (!rule) return base::Forward(rule);
    members.push_back({pair(name, *rule), std::ranges::contains(names, name)});
  }
  const Schema other = schema.value("additionalProperties", Schema(true));
  for (const std::string& name : names) {
    if (properties.contains(name)) continue;
    if (other == Schema(false)) {
      return Fail(ErrorKind::kInvalidInput,
                  "'{}' is required at {}, but 'additionalProperties' forbids it", name, path);
    }
    auto rule = Visit(other, path + "/additionalProperties");
    if (!rule) return base::Forward(rule);
    members.push_back({pair(name, *rule), true});
  }
  return members;
}

SchemaConverter::Body SchemaConverter::Object(const Schema& schema, const std::string& path) {
  ++consumed_;
  auto members = Members(schema, path);
  if (!members) return base::Forward(members);
  std::string additional;
  const auto other = schema.find("additionalProperties");
  if (other == schema.end() ? members->empty() : *other != Schema(false)) {
    auto value =
        other == schema.end() ? Body(AnyValue()) : Visit(*other, path + "/additionalProperties");
    if (!value) return value;
    std::vector<std::string> names;
    for (const auto& [name, unused] : schema.value("properties", Schema::object()).items()) {
      names.push_back(name);
    }
    for (const Schema& name : schema.value("required", Schema::array())) {
      names.push_back(name.get<std::string>());
    }
    additional = AdditionalPair(names, *value);
  }
  --consumed_;
  return text_.Add("object-of", MembersBody(*members, additional));
}

std::string SchemaConverter::MembersBody(const std::vector<Member>& members,
                                         const std::string& additional) {
  const std::string space = Space();
  const std::string comma = std::format("{0} \",\" {0} ", space);
  // What may follow once a member stands: built from the end.
  std::string rest;
  if (!additional.empty()) rest = std::format(" ({}{})*", comma, additional);
  std::vector<std::string> starts;  // alternatives for the first member
  bool may_be_empty = true;
  if (!additional.empty()) starts.push_back(additional + rest);
  for (std::size_t i = members.size(); i-- > 0;) {
    const std::string tail = rest.empty() ? rest : " " + text_.Add("rest", rest.substr(1));
    if (members[i].required) {
      starts.clear();
      may_be_empty = false;
    }
    starts.insert(starts.begin(), members[i].pair + tail);
    rest = members[i].required ? std::format(" {}{}{}", comma, members[i].pair, tail)
                               : std::format(" ({}{})?{}", comma, members[i].pair, tail);
  }
  std::string first;
  for (const std::string& start : starts) first += (first.empty() ? "" : " | ") + start;
  if (first.empty()) return std::format("\"{{\" {} \"}}\"", space);
  return std::format("\"{{\" {0} ({1}){2} \"}}\"", space, first + (may_be_empty ? " " + space : ""),
                     may_be_empty ? "?" : " " + space);
}

std::string SchemaConverter::AdditionalPair(const std::vector<std::string>& names,
                                            const std::string& value) {
  if (names.empty()) return Pair(AnyString(), value);
  std::vector<std::string> keys;
  for (const std::string& name : names) {
    const std::string quoted = Schema(name).dump(-1, ' ', false, Schema::error_handler_t::replace);
    keys.push_back(quoted.substr(1, quoted.size() - 2));
  }
  std::ranges::sort(keys);
  keys.erase(std::ranges::unique(keys).begin(), keys.end());
  return Pair("\"\\\"\" " + OtherKey(keys, 0), value);
}

std::string SchemaConverter::OtherKey(const std::vector<std::string>& names, std::size_t length) {
  // The characters, whole UTF-8 sequences, that names go on with, and the names that do.
  std::map<std::string, std::vector<std::string>> next;
  bool ends = false;
  for (const std::string& name : names) {
    if (name.size() == length) {
      ends = true;
      continue;
    }
    std::size_t end = length + 1;
    // A backslash and what it escapes are one character.
    if (name[length] == '\\') end += name.compare(length, 2, "\\u") == 0 ? 5 : 1;
    while (end < name.size() && (static_cast<unsigned char>(name[end]) & 0xC0) == 0x80) ++end;
    next[name.substr(length, end - length)].push_back(name);
  }
  std::string excluded = "\"\\\\\\x00-\\x1F";
  // Escapes that spell none of the names; a code point or an escaped slash could.
  std::string escapes = "\"\\bfnrt";
  std::string body;
  for (const auto& [character, longer] : next) {
    if (character.front() == '\\') {
      std::erase(escapes, character[1]);
    } else {
      // A class takes the sequence as it is, but for what has a meaning in it.
      excluded += character.size() == 1
                      ? ClassCharacter(static_cast<unsigned char>(character.front()))
                      : character;
    }
    body += Literal(character) + " " + OtherKey(longer, length + character.size()) + " | ";
  }
  std::string escape_class;
  for (const char c : escapes) escape_class += ClassCharacter(static_cast<unsigned char>(c));
  body += std::format("([^{}] | \"\\\\\" [{}]) {}* \"\\\"\"", excluded, escape_class, Character());
  if (!ends) body += " | \"\\\"\"";
  return text_.Add("other-key", body);
}

base::Result<std::pair<std::size_t, std::size_t>> SchemaConverter::Counts(const Schema& schema,
                                                                          const std::string& least,
                                                                          const std::string& most,
                                                                          const std::string& path) {
  std::pair<std::size_t, std::size_t> counts = {0, kUnlimited};
  for (const std::string& keyword : {least, most}) {
    const auto found = schema.find(keyword);
    if (found == schema.end()) continue;
    if (!found->is_number_integer() || *found < 0) {
      return Fail(ErrorKind::kInvalidInput, "'{}' at {} is {}; use 0 or more", keyword, path,
                  found->dump(-1, ' ', true, Schema::error_handler_t::replace));
    }
    if (*found > kMaxRepeat) {
      return Fail(ErrorKind::kUnsupported, "'{}' at {} is over {}, which is not supported", keyword,
                  path, kMaxRepeat);
    }
    (keyword == least ? counts.first : counts.second) = found->get<std::size_t>();
  }
  if (counts.first > counts.second) {
    return Fail(ErrorKind::kInvalidInput, "'{}' is over '{}' at {}", least, most, path);
  }
  return counts;
}

SchemaConverter::Body SchemaConverter::Array(const Schema& schema, const std::string& path) {
  auto counts = Counts(schema, "minItems", "maxItems", path);
  if (!counts) return base::Forward(counts);
  const auto [least, most] = *counts;
  ++consumed_;
  const Schema items = schema.value("items", Schema(true));
  const Schema prefix = items.is_array() ? items : schema.value("prefixItems", Schema::array());
  if (!prefix.is_array()) {
    return Fail(ErrorKind::kInvalidInput, "'prefixItems' at {} is not a list", path);
  }
  std::vector<std::string> elements;
  for (std::size_t i = 0; i < prefix.size() && i < most; ++i) {
    auto rule = Visit(prefix[i], std::format("{}/prefixItems/{}", path, i));
    if (!rule) return rule;
    elements.push_back(*rule);
  }
  std::string more;
  const bool open = prefix.empty() || (schema.contains("items") && !items.is_array());
  if (open && items != Schema(false)) {
    auto rule = Visit(items, path + "/items");
    if (!rule) return rule;
    more = *rule;
  }
  --consumed_;
  if (more.empty() && least > elements.size()) {
    return Fail(ErrorKind::kInvalidInput, "'minItems' at {} is {}, but only {} can be there", path,
                least, elements.size());
  }

  const std::string space = Space();
  const auto comma = [&](const std::string& element) {
    return std::format("{0} \",\" {0} {1}", space, element);
  };
  // From the end: what follows element number i.
  std::string rest;
  const std::size_t fixed = elements.size();
  if (!more.empty() && most > std::max<std::size_t>(fixed, 1)) {
    const std::size_t first = std::max<std::size_t>(fixed, 1);
    const std::string another = text_.Add("element", comma(more));
    rest = " " + text_.Repeat(another, least > first ? least - first : 0,
                              most == kUnlimited ? kUnlimited : most - first);
  }
  if (fixed == 0 && !more.empty() && most > 0) elements.push_back(more);
  for (std::size_t i = elements.size(); i-- > 1;) {
    const std::string element = comma(elements[i]) + rest;
    rest = i < least ? " " + element : " " + text_.Add("elements", element) + "?";
  }
  if (elements.empty()) return text_.Add("array-of", std::format("\"[\" {} \"]\"", space));
  const std::string all = elements.front() + rest + " " + space;
  return text_.Add("array-of", least > 0 ? std::format("\"[\" {} {} \"]\"", space, all)
                                         : std::format("\"[\" {} ({})? \"]\"", space, all));
}

SchemaConverter::Body SchemaConverter::String(const Schema& schema, const std::string& path) {
  const bool has_length = schema.contains("minLength") || schema.contains("maxLength");
  const int restrictions = (has_length ? 1 : 0) + (schema.contains("pattern") ? 1 : 0) +
                           (schema.contains("format") ? 1 : 0);
  if (restrictions > 1) {
    return Fail(ErrorKind::kUnsupported,
                "only one of 'pattern', 'format' and a length is supported at {}", path);
  }
  for (const char* keyword : {"pattern", "format"}) {
    if (schema.contains(keyword) && !schema[keyword].is_string()) {
      return Fail(ErrorKind::kInvalidInput, "'{}' at {} is not a string", keyword, path);
    }
  }
  if (const auto pattern = schema.find("pattern"); pattern != schema.end()) {
    auto body = PatternBody(pattern->get_ref<const std::string&>(), text_);
    if (!body) {
      return Fail(body.error().kind, "{}, for the 'pattern' at {}", body.error().message, path);
    }
    return text_.Add("pattern", Quoted("(" + *body + ")"));
  }
  if (const auto format = schema.find("format"); format != schema.end()) {
    const auto found = Formats().find(format->get_ref<const std::string&>());
    if (found == Formats().end()) {
      return Fail(ErrorKind::kUnsupported, "the 'format' '{}' at {} is not supported",
                  format->get_ref<const std::string&>(), path);
    }
    return text_.Add(found->first, Quoted(found->second));
  }
  if (!has_length) return AnyString();
  auto counts = Counts(schema, "minLength", "maxLength", path);
  if (!counts) return base::Forward(counts);
  return text_.Add("string-of", Quoted(text_.Repeat(Character(), counts->first, counts->second)));
}

base::Result<NumberBounds> SchemaConverter::Bounds(const Schema& schema, bool whole,
                                                   const std::string& path) {
  NumberBounds bounds;
  for (const char* keyword : {"minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"}) {
    const auto found = schema.find(keyword);
    if (found == schema.end()) continue;
    const std::string_view name = keyword;
    const bool exclusive = name.starts_with("exclusive");
    const bool lower = name.ends_with("inimum");
    if (exclusive && found->is_boolean()) {  // draft 4
      if (*found == Schema(true)) {
        (lower ? bounds.least_is_exclusive : bounds.most_is_exclusive) = true;
      }
      continue;
    }
    if (!found->is_number()) {
      return Fail(ErrorKind::kInvalidInput, "'{}' at {} is not a number", keyword, path);
    }
    const double value = found->get<double>();
    const double rounded = lower ? std::ceil(value) : std::floor(value);
    if (std::abs(value) > static_cast<double>(kMaxBound) || (!whole && rounded != value)) {
      return Fail(ErrorKind::kUnsupported,
                  "'{}' at {} is {}; only whole numbers up to 10^15 are supported", keyword, path,
                  value);
    }
    const auto bound = static_cast<std::int64_t>(rounded);
    const bool strict = exclusive && rounded == value;
    std::optional<std::int64_t>& present = lower ? bounds.least : bounds.most;
    bool& is_exclusive = lower ? bounds.least_is_exclusive : bounds.most_is_exclusive;
    const bool tighter = !present || (lower ? bound > *present : bound < *present);
    if (tighter || (bound == *present && strict)) is_exclusive = strict;
    if (tighter) present = bound;
  }
  return bounds;
}

SchemaConverter::Body SchemaConverter::Number(const Schema& schema, bool whole,
                                              const std::string& path) {
  auto bounds = Bounds(schema, whole, path);
  if (!bounds) return base::Forward(bounds);
  const std::string body = whole ? IntegerBody(*bounds) : NumberBody(*bounds);
  if (body.empty()) {
    return Fail(ErrorKind::kInvalidInput, "no number is within the bounds at {}", path);
  }
  return text_.Add(whole ? "integer" : "number", body);
}

}  // namespace engine
