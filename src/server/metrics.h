// The text that Prometheus reads from /metrics, format 0.0.4.
//
// docs/metrics.md lists every name; a test compares. Pure functions; any thread.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "engine/statistics.h"
#include "server/placement_report.h"

namespace server {

// Answers by route and status. Any thread.
class HttpCounters {
 public:
  void Add(const std::string& route, int status);
  std::map<std::pair<std::string, int>, std::uint64_t> counts() const;

 private:
  mutable std::mutex mutex_;
  std::map<std::pair<std::string, int>, std::uint64_t> counts_;
};

// Before the model is there, only what HTTP knows.
std::string MetricsText(const HttpCounters& http);
std::string MetricsText(const HttpCounters& http, const engine::EngineStatistics& engine,
                        const PlacementReport& placement);

}  // namespace server
