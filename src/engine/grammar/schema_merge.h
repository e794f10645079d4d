// Two schemas that must both hold, as one: for allOf and for what stands beside anyOf and $ref.
// Pure functions.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/result.h"

namespace engine {

using Schema = nlohmann::ordered_json;

// Whether a keyword says nothing about which values are valid.
bool IsAnnotation(std::string_view keyword);

// The part of `root` that `reference` ("#/…") points to. Errors: kUnsupported for a reference to
// another document, kInvalidInput for one to nothing.
base::Result<const Schema*> Resolve(const Schema& root, const std::string& reference,
                                    const std::string& path);

// A schema that accepts what both accept. Neither has a $ref. Errors: kInvalidInput when nothing
// can satisfy both, kUnsupported for keywords that cannot be joined.
base::Result<Schema> Merge(const Schema& a, const Schema& b, const std::string& path);

}  // namespace engine
