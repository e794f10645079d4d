// The useful part of regular expressions as GBNF. Pure functions.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"
#include "engine/grammar/grammar_text.h"

namespace engine {

// A GBNF body for what stands between the quotes of a JSON string whose value matches `pattern`
// (UTF-8, ECMAScript's syntax). As in JSON schema it may match anywhere unless it is anchored.
// Taken: literals, '.', classes, \d \w \s and their opposites, \xHH, \uHHHH, groups, '|',
// quantifiers (a lazy one as the greedy one), '^' in front and '$' behind an outermost alternative.
// Errors: kInvalidInput where the syntax is broken, kUnsupported for anything else (lookaround,
// back references, word boundaries, properties); both name the construct and where it stands.
base::Result<std::string> PatternBody(std::string_view pattern, GrammarText& text);

}  // namespace engine
