#include "cli/progress.h"

#include <unistd.h>

#include <cstdio>
#include <format>

#include "base/bytes.h"

namespace cli {

ProgressLine::ProgressLine() : terminal_(::isatty(STDERR_FILENO) == 1) {}

void ProgressLine::Show(std::string_view text, bool always) {
  const auto now = std::chrono::steady_clock::now();
  if (!terminal_ || (!always && shown_ && now - last_ < std::chrono::milliseconds(100))) return;
  std::fprintf(stderr, "\r\033[K%.*s", static_cast<int>(text.size()), text.data());
  std::fflush(stderr);
  shown_ = true;
  last_ = now;
}

void ProgressLine::Clear() {
  if (!shown_) return;
  std::fputs("\r\033[K", stderr);
  std::fflush(stderr);
  shown_ = false;
}

void LoadProgressLine::Show(const std::string& what, base::Bytes done, base::Bytes total) {
  const auto now = std::chrono::steady_clock::now();
  if (what != what_) {
    what_ = what;
    start_ = now;
    before_ = done;
  }
  const double seconds = std::chrono::duration<double>(now - start_).count();
  const double rate =
      seconds > 0 ? static_cast<double>((done - before_).count()) / seconds / 1e6 : 0.0;
  const std::string text = std::format("loading {}: {} of {}, {:.0f} MB/s", what,
                                       base::FormatBytes(done), base::FormatBytes(total), rate);
  line_.Show(text);
  if (listener_) listener_(text);
}

moe::LoadProgress LoadProgressLine::callback() {
  return [this](moe::TargetId target, base::Bytes done, base::Bytes total) {
    Show(config_[target].name, done, total);
  };
}

std::function<void(base::Bytes done, base::Bytes total)> LoadProgressLine::dense_callback() {
  const std::string what = std::format("dense part, {}", config_[config_.primary()].name);
  return [this, what](base::Bytes done, base::Bytes total) { Show(what, done, total); };
}

}  // namespace cli
