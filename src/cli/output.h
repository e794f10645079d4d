// What a command prints for its user: stdout, whole documents. Logs go elsewhere
// (cli/stderr_log.h). One thread.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace cli {

// Keeps keys in the order of writing, so that documents read as documented.
using Json = nlohmann::ordered_json;

// Writes to stdout and flushes. Errors: kIo when stdout is closed or full.
base::Result<void> PrintText(std::string_view text);
// One document and a newline. Bytes that are no UTF-8 (names in files and drivers) become U+FFFD.
base::Result<void> PrintJson(const Json& document);

// Columns wide enough for their cells; the first row is the heading. Cells of columns in
// `right_aligned` (from 0) are aligned right.
std::string FormatTable(const std::vector<std::vector<std::string>>& rows,
                        const std::vector<std::size_t>& right_aligned);

}  // namespace cli
