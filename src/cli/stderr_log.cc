#include "cli/stderr_log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <memory>
#include <string>

namespace cli {
namespace {

spdlog::level::level_enum SpdlogLevel(base::LogLevel level) {
  switch (level) {
    case base::LogLevel::kDebug:
      return spdlog::level::debug;
    case base::LogLevel::kInfo:
      return spdlog::level::info;
    case base::LogLevel::kWarning:
      return spdlog::level::warn;
    case base::LogLevel::kError:
      return spdlog::level::err;
  }
  return spdlog::level::err;
}

const char* Mark(base::LogLevel level) {
  switch (level) {
    case base::LogLevel::kWarning:
      return "warning: ";
    case base::LogLevel::kError:
      return "error: ";
    default:
      return "";
  }
}

}  // namespace

base::Log MakeStderrLog(base::LogLevel least) {
  auto logger = std::make_shared<spdlog::logger>("expert-split",
                                                 std::make_shared<spdlog::sinks::stderr_sink_mt>());
  logger->set_pattern("[expert-split] %v");
  logger->set_level(SpdlogLevel(least));
  // The default handler writes to stderr itself, which just failed.
  logger->set_error_handler([](const std::string&) {});
  return base::Log([logger](base::LogLevel level, std::string_view message) {
    logger->log(SpdlogLevel(level), "{}{}", Mark(level), message);
  });
}

}  // namespace cli
