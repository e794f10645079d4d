// A ModelBackend for tests that writes given texts.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "model/backend.h"
#include "model/text/vocabulary.h"

namespace server {

// A reply to a prompt: `text` once per generation, then the end-of-generation token. Which text:
// the one whose key the prompt contains (the longest such key); without one the end comes at once.
// `step_ms` is how long every step takes.
class ScriptedBackend : public model::ModelBackend {
 public:
  ScriptedBackend(const model::Vocabulary& vocabulary, std::map<std::string, std::string> replies,
                  std::size_t context_length, std::size_t num_slots)
      : vocabulary_(&vocabulary),
        replies_(std::move(replies)),
        context_length_(context_length),
        histories_(num_slots) {
    end_ = vocabulary.Tokenize("<|im_end|>", false)->front();
  }

  std::size_t num_slots() const override { return histories_.size(); }
  std::size_t context_length() const override { return context_length_; }
  std::size_t max_batch_rows() const override { return 512; }
  std::size_t vocab_size() const override { return vocabulary_->size(); }
  std::size_t slot_length(std::uint32_t slot) const override { return histories_[slot].size(); }

  base::Result<std::span<const float>> Evaluate(std::span<const model::BatchRow> rows,
                                                std::stop_token) override {
    if (step_ms > 0) std::this_thread::sleep_for(std::chrono::milliseconds(step_ms));
    ++steps;
    if (fail) {
      for (const model::BatchRow& row : rows) histories_[row.slot].clear();
      return base::Fail(base::ErrorKind::kDeviceFailure, "scripted failure");
    }
    logits_.clear();
    for (const model::BatchRow& row : rows) {
      histories_[row.slot].push_back(row.token);
      if (!row.wants_logits) continue;
      std::vector<float> logits(vocab_size(), -20.0F);
      logits[static_cast<std::size_t>(NextOf(histories_[row.slot]))] = 20.0F;
      logits_.insert(logits_.end(), logits.begin(), logits.end());
    }
    return std::span<const float>(logits_);
  }

  void ClearSlot(std::uint32_t slot) override { histories_[slot].clear(); }
  base::Result<void> CopySlot(std::uint32_t from, std::uint32_t to) override {
    histories_[to] = histories_[from];
    return {};
  }
  base::Result<std::unique_ptr<model::SlotCheckpoint>> SaveSlot(std::uint32_t slot) override {
    return std::make_unique<Checkpoint>(histories_[slot].size());
  }
  base::Result<void> RestoreSlot(const model::SlotCheckpoint& checkpoint, std::uint32_t from,
                                 std::uint32_t to) override {
    histories_[to] = histories_[from];
    histories_[to].resize(checkpoint.length());
    return {};
  }
  void SetThreads(std::size_t) override {}
  std::uint64_t graphs_built() const override { return 0; }
  void TimeNodes(bool) override {}
  std::vector<model::NodeTime> node_times() const override { return {}; }
  std::vector<model::ExpertCounter> expert_counters() const override { return {}; }

  std::atomic<int> step_ms = 0;
  std::atomic<bool> fail = false;
  std::atomic<std::uint64_t> steps = 0;

 private:
  class Checkpoint : public model::SlotCheckpoint {
   public:
    explicit Checkpoint(std::size_t length) : length_(length) {}
    std::size_t length() const override { return length_; }
    base::Bytes bytes() const override { return base::Bytes(1); }

   private:
    std::size_t length_;
  };

  // The prompt ends where the assistant's turn begins, or at '>' for completions.
  model::Token NextOf(const std::vector<model::Token>& history) const {
    const std::string text = vocabulary_->Text(history);
    constexpr std::string_view kTurn = "<|im_start|>assistant\n";
    const std::size_t turn = text.rfind(kTurn);
    const std::size_t arrow = text.find("=>");
    const std::size_t begin = turn != std::string::npos    ? turn + kTurn.size()
                              : arrow != std::string::npos ? arrow + 2
                                                           : text.size();
    const std::string prompt = text.substr(0, begin);
    const std::string* reply = nullptr;
    std::size_t longest = 0;
    for (const auto& [key, candidate] : replies_) {
      if (key.size() >= longest && prompt.contains(key)) {
        reply = &candidate;
        longest = key.size();
      }
    }
    if (reply == nullptr) return end_;
    // Tokens may cut characters, so the reply is tokenised whole.
    const std::vector<model::Token> tokens = *vocabulary_->Tokenize(*reply, false);
    std::size_t count = 0;
    for (std::size_t bytes = 0; bytes < text.size() - begin; ++count) {
      bytes += vocabulary_->Piece(history[history.size() - 1 - count]).size();
    }
    return count < tokens.size() ? tokens[count] : end_;
  }

  const model::Vocabulary* vocabulary_;
  std::map<std::string, std::string> replies_;
  std::size_t context_length_;
  model::Token end_ = 0;
  std::vector<std::vector<model::Token>> histories_;  // [slots]
  std::vector<float> logits_;
};

}  // namespace server
