// Measured speeds of targets, kept from one run to the next in a file of the user's cache folder.
//
// An entry is of one device and one kind of weights. A file that is missing, damaged or cannot be
// written costs a measurement and is no error. Several processes may use it at once: it is replaced
// whole. One thread.
#pragma once

#include <optional>
#include <string>

#include "moe/plan/cost_model.h"

namespace cli {

class SpeedCache {
 public:
  // Without a path nothing is kept.
  explicit SpeedCache(std::string path) : path_(std::move(path)) {}

  // $XDG_CACHE_HOME/expert-split/speeds.json, with ~/.cache where that is not set; empty when the
  // user has neither.
  static std::string DefaultPath();

  std::optional<moe::TargetSpeed> Find(const std::string& key) const;
  // False when it could not be written.
  bool Store(const std::string& key, const moe::TargetSpeed& speed) const;

 private:
  std::string path_;
};

}  // namespace cli
