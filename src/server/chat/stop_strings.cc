#include "server/chat/stop_strings.h"

#include <algorithm>
#include <utility>

namespace server {

std::size_t PartialSuffix(std::string_view text, std::string_view word) {
  if (word.empty()) return 0;
  for (std::size_t size = std::min(text.size(), word.size() - 1); size > 0; --size) {
    if (text.ends_with(word.substr(0, size))) return size;
  }
  return 0;
}

StopStrings::StopStrings(std::vector<std::string> stops) : stops_(std::move(stops)) {
  std::erase(stops_, std::string());
}

std::string StopStrings::Feed(std::string_view text) {
  if (stopped()) return {};
  held_ += text;
  std::size_t first = std::string::npos;
  for (const std::string& stop : stops_) {
    const std::size_t at = held_.find(stop);
    if (at < first) {
      first = at;
      matched_ = stop;
    }
  }
  if (stopped()) {
    held_.resize(first);
    return std::exchange(held_, {});
  }
  std::size_t keep = 0;
  for (const std::string& stop : stops_) keep = std::max(keep, PartialSuffix(held_, stop));
  std::string shown = held_.substr(0, held_.size() - keep);
  held_.erase(0, shown.size());
  return shown;
}

std::string StopStrings::Finish() { return std::exchange(held_, {}); }

}  // namespace server
