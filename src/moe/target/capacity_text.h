// The capacity of a target list item as text. Internal to moe/target; values, any thread.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"
#include "moe/target/target_config.h"

namespace moe {

// "auto", SIZE or PERCENT "%". Errors: kInvalidInput naming the text and what is accepted.
base::Result<TargetCapacity> ParseCapacity(std::string_view text);

// The shortest SIZE that is exactly these bytes: "20GiB", "20GB", "1536MiB", "0", "12345".
std::string SizeText(base::Bytes bytes);

// What ParseCapacity reads back as the same value: "auto", a SizeText or "12.5%".
std::string CapacityText(const TargetCapacity& capacity);

}  // namespace moe
