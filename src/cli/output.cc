#include "cli/output.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <format>

namespace cli {

base::Result<void> PrintText(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0) {
    return base::Fail(base::ErrorKind::kIo, "cannot write to standard output: {}",
                      std::strerror(errno));
  }
  return {};
}

base::Result<void> PrintJson(const Json& document) {
  constexpr int kIndent = -1;
  return PrintText(
      document.dump(kIndent, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace) + "\n");
}

std::string FormatTable(const std::vector<std::vector<std::string>>& rows,
                        const std::vector<std::size_t>& right_aligned) {
  std::vector<std::size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string table;
  for (const auto& row : rows) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) {
      if (i > 0) line += "  ";
      const bool right = std::ranges::find(right_aligned, i) != right_aligned.end();
      line += right ? std::format("{:>{}}", row[i], widths[i])
                    : std::format("{:<{}}", row[i], widths[i]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    table += line + "\n";
  }
  return table;
}

}  // namespace cli
