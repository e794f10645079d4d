// A ModelBackend for tests whose logits are a simple function of a slot's history.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "model/backend.h"

namespace engine {

// After tokens t0 … tn the likeliest next token is (t0 + … + tn) mod vocabulary size; logits fall
// with the distance from it.
class FakeBackend : public model::ModelBackend {
 public:
  FakeBackend(std::size_t vocab_size, std::size_t context_length, std::size_t max_batch_rows,
              std::size_t num_slots = 1)
      : vocab_size_(vocab_size),
        context_length_(context_length),
        max_batch_rows_(max_batch_rows),
        histories_(num_slots) {}

  static std::size_t Likeliest(const std::vector<std::int32_t>& history, std::size_t vocab_size) {
    std::size_t sum = 0;
    for (const std::int32_t token : history) sum += static_cast<std::size_t>(token);
    return sum % vocab_size;
  }

  std::size_t num_slots() const override { return histories_.size(); }
  std::size_t context_length() const override { return context_length_; }
  std::size_t max_batch_rows() const override { return max_batch_rows_; }
  std::size_t vocab_size() const override { return vocab_size_; }
  std::size_t slot_length(std::uint32_t slot) const override { return histories_[slot].size(); }

  base::Result<std::span<const float>> Evaluate(std::span<const model::BatchRow> rows,
                                                std::stop_token stop) override {
    if (stop.stop_requested()) return base::Fail(base::ErrorKind::kCancelled, "stopped");
    if (rows.empty() || rows.size() > max_batch_rows_) {
      return base::Fail(base::ErrorKind::kInvalidInput, "{} rows", rows.size());
    }
    batch_sizes.push_back(rows.size());
    if (times_nodes_) timed_rows_ += rows.size();
    logits_.clear();
    for (const model::BatchRow& row : rows) {
      if (row.slot >= histories_.size()) {
        return base::Fail(base::ErrorKind::kInvalidInput, "slot {}", row.slot);
      }
      std::vector<std::int32_t>& history = histories_[row.slot];
      if (row.position != history.size()) {
        return base::Fail(base::ErrorKind::kInvalidInput, "position {}", row.position);
      }
      history.push_back(row.token);
      rows_seen.push_back(row);
      if (!row.wants_logits) continue;
      const auto likeliest = static_cast<float>(Likeliest(history, vocab_size_));
      for (std::size_t t = 0; t < vocab_size_; ++t) {
        logits_.push_back(-0.1F * std::abs(static_cast<float>(t) - likeliest));
      }
    }
    return std::span<const float>(logits_);
  }

  void ClearSlot(std::uint32_t slot) override { histories_[slot].clear(); }
  base::Result<void> CopySlot(std::uint32_t, std::uint32_t) override { return {}; }
  void SetThreads(std::size_t) override {}
  std::uint64_t graphs_built() const override { return 0; }
  std::vector<model::ExpertCounter> expert_counters() const override { return {}; }

  // A node a row, a millisecond each.
  void TimeNodes(bool on) override {
    times_nodes_ = on;
    if (on) timed_rows_ = 0;
  }
  std::vector<model::NodeTime> node_times() const override {
    return {{"row", timed_rows_, static_cast<double>(timed_rows_)}};
  }

  std::vector<std::size_t> batch_sizes;    // rows of each Evaluate
  std::vector<model::BatchRow> rows_seen;  // all rows so far

 private:
  std::size_t vocab_size_;
  std::size_t context_length_;
  std::size_t max_batch_rows_;
  std::vector<std::vector<std::int32_t>> histories_;  // [slots]
  std::vector<float> logits_;
  bool times_nodes_ = false;
  std::uint64_t timed_rows_ = 0;
};

}  // namespace engine
