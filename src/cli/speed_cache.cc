#include "cli/speed_cache.h"

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "base/file.h"
#include "cli/output.h"

namespace cli {
namespace {

constexpr base::Bytes kMaxFile = base::Bytes::MiB(1);
constexpr int kVersion = 1;

// An object, empty when there is no file that can be used.
Json ReadEntries(const std::string& path) {
  const auto text = base::ReadFile(path, kMaxFile);
  if (!text) return Json::object();
  const Json document = Json::parse(*text, nullptr, /*allow_exceptions=*/false);
  if (!document.is_object() || document.value("version", Json()) != kVersion) {
    return Json::object();
  }
  const auto entries = document.find("speeds");
  return entries != document.end() && entries->is_object() ? *entries : Json::object();
}

std::optional<double> Number(const Json& entry, const char* key, double least) {
  const auto found = entry.find(key);
  if (found == entry.end() || !found->is_number()) return std::nullopt;
  const double value = found->get<double>();
  return std::isfinite(value) && value >= least ? std::optional(value) : std::nullopt;
}

}  // namespace

std::string SpeedCache::DefaultPath() {
  const char* cache = std::getenv("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  // A relative path there is to be ignored.
  if (cache != nullptr && cache[0] == '/') return std::string(cache) + "/expert-split/speeds.json";
  if (home != nullptr && home[0] == '/') {
    return std::string(home) + "/.cache/expert-split/speeds.json";
  }
  return {};
}

std::optional<moe::TargetSpeed> SpeedCache::Find(const std::string& key) const {
  if (path_.empty()) return std::nullopt;
  const Json entries = ReadEntries(path_);
  const auto entry = entries.find(key);
  if (entry == entries.end() || !entry->is_object()) return std::nullopt;
  const auto decode = Number(*entry, "decode_bytes_per_second", 1);
  const auto prompt = Number(*entry, "prompt_bytes_per_second", 1);
  const auto layer = Number(*entry, "layer_seconds", 0);
  if (!decode || !prompt || !layer) return std::nullopt;
  return moe::TargetSpeed{*decode, *prompt, *layer};
}

bool SpeedCache::Store(const std::string& key, const moe::TargetSpeed& speed) const {
  if (path_.empty()) return false;
  std::error_code failed;
  std::filesystem::create_directories(std::filesystem::path(path_).parent_path(), failed);
  Json entries = ReadEntries(path_);
  entries[key] = {{"decode_bytes_per_second", speed.decode_bytes_per_second},
                  {"prompt_bytes_per_second", speed.prompt_bytes_per_second},
                  {"layer_seconds", speed.layer_seconds}};
  const Json document = {{"version", kVersion}, {"speeds", std::move(entries)}};
  const std::string text = document.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
  return base::WriteFileAtomically(path_, text).has_value();
}

}  // namespace cli
