// Where libraries send what a person should read.
//
// Libraries never print. They are handed a Log by whoever composes them; cli hands out one that
// writes to stderr. A Log may be called from any thread.
#pragma once

#include <format>
#include <functional>
#include <string_view>
#include <utility>

namespace base {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

class Log {
 public:
  using Sink = std::function<void(LogLevel level, std::string_view message)>;

  // Discards everything.
  Log() = default;
  // `sink` must be callable from any thread.
  explicit Log(Sink sink) : sink_(std::move(sink)) {}

  template <class... Args>
  void Debug(std::format_string<Args...> format, Args&&... args) const {
    Write(LogLevel::kDebug, std::format(format, std::forward<Args>(args)...));
  }
  template <class... Args>
  void Info(std::format_string<Args...> format, Args&&... args) const {
    Write(LogLevel::kInfo, std::format(format, std::forward<Args>(args)...));
  }
  template <class... Args>
  void Warning(std::format_string<Args...> format, Args&&... args) const {
    Write(LogLevel::kWarning, std::format(format, std::forward<Args>(args)...));
  }

 private:
  void Write(LogLevel level, std::string_view message) const {
    if (sink_) sink_(level, message);
  }

  Sink sink_;
};

}  // namespace base
