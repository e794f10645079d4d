// One item of a target list. Internal to moe/target; values, any thread.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"
#include "moe/target/target_config.h"

namespace moe {

// `item` without the blanks around it. The name is the canonical one of a first occurrence: the
// list adds "#2" to repeated workers. Errors: kInvalidInput; the message names the offending part
// and what is accepted, and leaves the item and its position to the caller.
base::Result<ExpertSplitTarget> ParseItem(std::string_view item);

// Canonical text of the target without capacity and without "#2": what the grammar reads back.
std::string TargetText(const ExpertSplitTarget& target);

}  // namespace moe
