// A ModelBackend for tests whose logits are a function of all that a slot holds.
#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "model/backend.h"

namespace engine {

// Like a hybrid model it keeps two things of a sequence: cells, one a token, which clearing leaves
// behind, and a state that every token overwrites. Both enter the logits, so that a stale one of
// either kind shows. The likeliest next token is Likeliest of the history; logits fall with the
// distance from it.
class FakeBackend : public model::ModelBackend {
 public:
  FakeBackend(std::size_t vocab_size, std::size_t context_length, std::size_t max_batch_rows,
              std::size_t num_slots = 1)
      : vocab_size_(vocab_size),
        context_length_(context_length),
        max_batch_rows_(max_batch_rows),
        slots_(num_slots) {}

  // The first token itself for a history of one.
  static std::size_t Likeliest(const std::vector<std::int32_t>& history, std::size_t vocab_size) {
    Slot slot;
    for (const std::int32_t token : history) slot.Append(token);
    return slot.Likeliest(vocab_size);
  }

  std::size_t num_slots() const override { return slots_.size(); }
  std::size_t context_length() const override { return context_length_; }
  std::size_t max_batch_rows() const override { return max_batch_rows_; }
  std::size_t vocab_size() const override { return vocab_size_; }
  std::size_t slot_length(std::uint32_t slot) const override { return slots_[slot].length; }

  base::Result<std::span<const float>> Evaluate(std::span<const model::BatchRow> rows,
                                                std::stop_token stop) override {
    if (before_step) {
      if (auto failed = before_step(rows, stop); !failed) {
        for (const model::BatchRow& row : rows) ClearSlot(row.slot);
        return std::unexpected(failed.error());
      }
    }
    if (stop.stop_requested()) return base::Fail(base::ErrorKind::kCancelled, "stopped");
    if (rows.empty() || rows.size() > max_batch_rows_) {
      return base::Fail(base::ErrorKind::kInvalidInput, "{} rows", rows.size());
    }
    batch_sizes.push_back(rows.size());
    if (times_nodes_) timed_rows_ += rows.size();
    batches.emplace_back(rows.begin(), rows.end());
    logits_.clear();
    for (const model::BatchRow& row : rows) {
      if (row.slot >= slots_.size()) {
        return base::Fail(base::ErrorKind::kInvalidInput, "slot {}", row.slot);
      }
      Slot& slot = slots_[row.slot];
      if (row.position != slot.length || row.position >= context_length_) {
        return base::Fail(base::ErrorKind::kInvalidInput, "position {}", row.position);
      }
      slot.Append(row.token);
      rows_seen.push_back(row);
      if (!row.wants_logits) continue;
      const auto likeliest = static_cast<float>(slot.Likeliest(vocab_size_));
      for (std::size_t t = 0; t < vocab_size_; ++t) {
        logits_.push_back(-0.1F * std::abs(static_cast<float>(t) - likeliest));
      }
    }
    return std::span<const float>(logits_);
  }

  void ClearSlot(std::uint32_t slot) override { slots_[slot].length = slots_[slot].state = 0; }
  base::Result<void> CopySlot(std::uint32_t from, std::uint32_t to) override {
    slots_[to] = slots_[from];
    return {};
  }
  base::Result<std::unique_ptr<model::SlotCheckpoint>> SaveSlot(std::uint32_t slot) override {
    ++saves;
    return std::make_unique<Checkpoint>(slots_[slot].length, slots_[slot].state);
  }
  base::Result<void> RestoreSlot(const model::SlotCheckpoint& checkpoint, std::uint32_t from,
                                 std::uint32_t to) override {
    ++restores;
    const auto& saved = static_cast<const Checkpoint&>(checkpoint);
    if (from != to) slots_[to].cells = slots_[from].cells;
    slots_[to].length = saved.length();
    slots_[to].state = saved.state();
    return {};
  }
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

  // Called at the start of each Evaluate; its error is that of the step.
  std::function<base::Result<void>(std::span<const model::BatchRow> rows, std::stop_token stop)>
      before_step;
  // Of each Evaluate that computed. Read them when no inference thread runs.
  std::vector<std::size_t> batch_sizes;
  std::vector<std::vector<model::BatchRow>> batches;
  std::vector<model::BatchRow> rows_seen;  // all rows so far
  std::size_t saves = 0;
  std::size_t restores = 0;
  static constexpr base::Bytes kCheckpointBytes = base::Bytes(1000);

 private:
  struct Slot {
    std::vector<std::int32_t> cells;  // those from `length` on are left over
    std::size_t length = 0;
    std::size_t state = 0;

    void Append(std::int32_t token) {
      if (cells.size() <= length) cells.resize(length + 1);
      cells[length++] = token;
      state = (state * 31 + static_cast<std::size_t>(token)) % 1000003;
    }
    std::size_t Likeliest(std::size_t vocab_size) const {
      std::size_t sum = state;
      for (std::size_t i = 0; i < length; ++i) sum += i * static_cast<std::size_t>(cells[i]);
      return sum % vocab_size;
    }
  };

  class Checkpoint final : public model::SlotCheckpoint {
   public:
    Checkpoint(std::size_t length, std::size_t state) : length_(length), state_(state) {}
    std::size_t length() const override { return length_; }
    base::Bytes bytes() const override { return kCheckpointBytes; }
    std::size_t state() const { return state_; }

   private:
    std::size_t length_;
    std::size_t state_;
  };

  std::size_t vocab_size_;
  std::size_t context_length_;
  std::size_t max_batch_rows_;
  std::vector<Slot> slots_;
  std::vector<float> logits_;
  bool times_nodes_ = false;
  std::uint64_t timed_rows_ = 0;
};

}  // namespace engine
