// GBNF grammars, read before libllama reads them.
//
// libllama prints what it finds wrong to stderr, and some grammars end the process: its parser and
// its search for left recursion are recursive, and x{3,1} repeats without end. What this accepts it
// takes, but for left recursion, which it reports silently. Pure; any thread.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace model {

inline constexpr std::size_t kMaxGrammarBytes = 1 << 20;
// How deep parentheses may nest, and how many rules there may be with those that libllama makes of
// groups and repetitions.
inline constexpr std::size_t kMaxGrammarDepth = 200;
inline constexpr std::size_t kMaxGrammarRules = 16'384;

// The tokens that `grammar` names as <name>, in order; the grammar is fine when each of them is one
// token of the model's. Errors: kInvalidInput, with line and column, for what is no grammar or is
// beyond a limit.
base::Result<std::vector<std::string>> CheckGrammar(std::string_view grammar);

}  // namespace model
