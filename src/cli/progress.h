// A line on a terminal's stderr that says how far long work is. Nothing where stderr is no
// terminal. One thread.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <string_view>
#include <utility>

#include "base/bytes.h"
#include "moe/compute/expert_loader.h"
#include "moe/target/target_config.h"

namespace cli {

class ProgressLine {
 public:
  ProgressLine();
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;
  ~ProgressLine() { Clear(); }

  // Replaces the line; a few times a second at most, `always` regardless of that.
  void Show(std::string_view text, bool always = false);
  // Takes the line away.
  void Clear();

 private:
  bool terminal_ = false;
  bool shown_ = false;
  std::chrono::steady_clock::time_point last_;
};

// Loading: target, bytes done and in total, rate.
class LoadProgressLine {
 public:
  // `listener` is told the same, terminal or not; may be empty.
  LoadProgressLine(const moe::ExpertSplitTargetConfig& config,
                   std::function<void(std::string_view)> listener)
      : config_(config), listener_(std::move(listener)) {}

  // Valid as long as this object.
  moe::LoadProgress callback();
  // The same for the dense part, on the primary.
  std::function<void(base::Bytes done, base::Bytes total)> dense_callback();
  void Clear() { line_.Clear(); }

 private:
  void Show(const std::string& what, base::Bytes done, base::Bytes total);

  const moe::ExpertSplitTargetConfig& config_;
  std::function<void(std::string_view)> listener_;
  ProgressLine line_;
  std::string what_;
  base::Bytes before_;  // done when `what_` was first shown, at start_
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace cli
