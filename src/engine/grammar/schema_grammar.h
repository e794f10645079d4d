// JSON schema to GBNF: what a model's answer must look like, as a grammar for its sampler.
//
// Taken: type (also several), enum, const, properties, required, additionalProperties, items (also
// as a list), prefixItems, minItems, maxItems, anyOf, oneOf, allOf, $ref into the same document
// (also recursive), pattern (engine/grammar/pattern_rules.h), format (date, time, date-time, uuid,
// ipv4), minLength, maxLength, minimum, maximum, exclusiveMinimum, exclusiveMaximum; annotations
// and keywords that begin with "x-" are passed over. Narrower or wider than the standard on
// purpose:
// - properties come in the schema's order, then additional ones;
// - without additionalProperties an object that has properties takes no others, and a list with
//   prefixItems no elements behind them; a schema for one type of value takes no other type;
// - of the alternatives of oneOf several may match;
// - between tokens stands at most one blank or one line break with up to 32 blanks.
// Pure functions; any thread.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "base/result.h"

namespace engine {

// A grammar with a rule `root` that the whole answer matches. Errors, each naming keyword and path
// ("at /properties/a"): kInvalidInput for a schema that is broken or that nothing satisfies,
// kUnsupported for every other keyword or use of one.
base::Result<std::string> SchemaGrammar(const nlohmann::ordered_json& schema);

// Any JSON object.
std::string JsonObjectGrammar();

}  // namespace engine
