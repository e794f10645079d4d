// What slots still hold of earlier requests, and where a new one may go on from.
//
// Bookkeeping only: the owner does with the backend's slots what Take says, and reports what the
// slots hold. A slot keeps one sequence of tokens. One that is idle can go on at its end; any slot,
// idle or not, can be gone back to, or be copied from, at a checkpoint: recurrent state cannot be
// wound back. Checkpoints are bounded in bytes, the least recently used one goes first. One thread
// at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "model/backend.h"
#include "model/text/vocabulary.h"

namespace engine {

class PrefixCache {
 public:
  // All slots are idle and empty.
  PrefixCache(std::size_t num_slots, base::Bytes budget);

  // How a request starts.
  struct Start {
    std::uint32_t slot = 0;  // where it runs; busy from now on
    std::size_t length = 0;  // of the prompt's tokens, those that need not be computed
    // Set: RestoreSlot(*checkpoint, from, slot). Otherwise `slot` goes on as it is, or must be
    // cleared when `length` is 0. Valid until the next call.
    const model::SlotCheckpoint* checkpoint = nullptr;
    std::uint32_t from = 0;
  };
  // Takes an idle slot for `prompt` (at least one token, of which at least one is left to compute).
  // Precondition: has_idle_slot(). `reuse` false: starts afresh.
  Start Take(std::span<const model::Token> prompt, bool reuse);
  bool has_idle_slot() const;
  // Start::length of Take now.
  std::size_t LongestStart(std::span<const model::Token> prompt) {
    return FindLongest(prompt).length;
  }

  // `slot` holds `token` as well.
  void Append(std::uint32_t slot, model::Token token);
  // Whether a checkpoint of `slot` at its present length is missing and would be kept.
  bool WantsCheckpoint(std::uint32_t slot) const;
  // A checkpoint of `slot` at its present length. Dropped when it exceeds the budget by itself.
  void Keep(std::uint32_t slot, std::unique_ptr<model::SlotCheckpoint> checkpoint);
  // `slot` is idle and holds what it holds.
  void Release(std::uint32_t slot);
  // `slot` holds nothing any more; busy as before.
  void Forget(std::uint32_t slot);

  std::size_t slot_length(std::uint32_t slot) const { return slots_[slot].tokens.size(); }
  std::size_t num_checkpoints() const { return entries_.size(); }
  base::Bytes checkpoint_bytes() const { return bytes_; }

 private:
  struct Slot {
    std::vector<model::Token> tokens;
    bool busy = false;
    std::uint64_t last_used = 0;
  };
  struct Entry {
    std::unique_ptr<model::SlotCheckpoint> checkpoint;
    std::vector<std::uint32_t> slots;  // that hold the tokens it stands on
    std::uint64_t last_used = 0;
  };
  struct Found {
    std::size_t length = 0;
    std::uint32_t slot = 0;
    Entry* entry = nullptr;  // none: the slot's end
  };

  Found FindLongest(std::span<const model::Token> prompt);
  // The idle slot whose content is missed least, other than `spared` where there is another.
  std::uint32_t LeastMissed(std::uint32_t spared) const;
  // Cuts what `slot` holds to `length` tokens.
  void Truncate(std::uint32_t slot, std::size_t length);
  void Drop(const Entry* entry);

  base::Bytes budget_;
  base::Bytes bytes_;
  std::vector<Slot> slots_;
  std::vector<std::unique_ptr<Entry>> entries_;
  std::uint64_t clock_ = 0;
};

}  // namespace engine
