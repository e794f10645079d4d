// Checked access to the JSON of plan and profile files.
//
// Reading never throws and never trusts: size, nesting, presence, type and range of everything are
// checked, and what fails is reported in one line as kind of file, path, field and remedy. Values
// live as long as the document they came from; any thread.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/result.h"
#include "moe/plan/model_shape.h"

namespace moe {

// One object of a document and where it is, for messages.
class JsonFields {
 public:
  // What kind of file a document is and what to do when it cannot be used.
  struct Source {
    std::string kind;    // "plan" or "profile"
    std::string path;    // as the user wrote it
    std::string remedy;  // "make it again with ..."
  };

  // Precondition: `object` is a JSON object. `prefix` is its own field name with a dot, or empty.
  JsonFields(const Source& source, const nlohmann::json& object, std::string prefix = {})
      : source_(source), object_(object), prefix_(std::move(prefix)) {}

  // Errors of all: kCorruptModel, for an absent field, one of another type or out of range.
  base::Result<std::string> Text(std::string_view key) const;
  base::Result<std::uint64_t> Number(std::string_view key, std::uint64_t least,
                                     std::uint64_t most) const;
  // A string of exactly 16 lower-case hexadecimal digits.
  base::Result<std::uint64_t> Hash(std::string_view key) const;
  base::Result<JsonFields> Object(std::string_view key) const;
  // An array of `least` to `most` elements. The pointer is never null.
  base::Result<const nlohmann::json*> Array(std::string_view key, std::size_t least,
                                            std::size_t most) const;
  // Any value. The pointer is never null.
  base::Result<const nlohmann::json*> Value(std::string_view key) const;

  // `plan "p.json", field targets[3].name: PROBLEM; REMEDY`. `problem` is one printable line.
  std::unexpected<base::Error> Refuse(std::string_view key, std::string_view problem) const;

 private:
  const Source& source_;
  const nlohmann::json& object_;
  std::string prefix_;
};

// Parses `text`, which must be one object nested at most 8 deep with "format" equal to `format` and
// "version" equal to `version`. Errors: kCorruptModel.
base::Result<nlohmann::json> ParseJsonFile(std::string_view text, std::string_view format,
                                           std::uint64_t version, const JsonFields::Source& source);

// base::ReadFile for such a file, up to kMaxJsonFileBytes. Errors: kCorruptModel.
inline constexpr std::uint64_t kMaxJsonFileBytes = 64 << 20;
base::Result<std::string> ReadJsonFile(const JsonFields::Source& source);

// The document as it is written: one line for each of the object's fields and for each element of
// its arrays. Bytes that are not UTF-8 become U+FFFD.
std::string PrintJsonFile(const nlohmann::ordered_json& document);

// A model's identity in both kinds of file. Text that is not UTF-8 is written as PrintJsonFile
// does.
nlohmann::ordered_json IdentityToJson(const ModelIdentity& identity);
base::Result<ModelIdentity> IdentityFromJson(const JsonFields& fields);
// `identity` as it reads back after having been written.
ModelIdentity AsWritten(const ModelIdentity& identity);

// `examplemoe "Name" Q4_K_M, 40 layers x 256 experts, directory 0123456789abcdef`; for messages.
std::string DescribeIdentity(const ModelIdentity& identity);

}  // namespace moe
