// A target list's items. Internal to moe/target; values, any thread.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "moe/target/target_config.h"

namespace moe {

inline constexpr std::size_t kMaxListItems = 255;

// The items of a list, without the blanks around them: cut at commas outside parentheses. Stops
// after one more than kMaxListItems.
std::vector<std::string_view> SplitItems(std::string_view list);

// `item` without the blanks around it. The name is the canonical one of a first occurrence: the
// list adds "#2" to repeated workers. Errors: kInvalidInput; the message names the offending part
// and what is accepted, and leaves the item and its position to the caller.
base::Result<ExpertSplitTarget> ParseItem(std::string_view item);

// Canonical text of the target without capacity and without "#2": what the grammar reads back.
std::string TargetText(const ExpertSplitTarget& target);

}  // namespace moe
