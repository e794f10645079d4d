#include "engine/prefix_cache.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/check.h"

namespace engine {
namespace {

constexpr std::uint32_t kNoSlot = std::numeric_limits<std::uint32_t>::max();

std::size_t CommonLength(std::span<const model::Token> a, std::span<const model::Token> b) {
  return static_cast<std::size_t>(std::ranges::mismatch(a, b).in1 - a.begin());
}

}  // namespace

PrefixCache::PrefixCache(std::size_t num_slots, base::Bytes budget)
    : budget_(budget), slots_(num_slots) {}

bool PrefixCache::has_idle_slot() const {
  return std::ranges::any_of(slots_, [](const Slot& slot) { return !slot.busy; });
}

PrefixCache::Found PrefixCache::FindLongest(std::span<const model::Token> prompt) {
  const std::size_t most = prompt.size() - 1;
  Found best;
  for (std::uint32_t i = 0; i < slots_.size(); ++i) {
    const std::vector<model::Token>& tokens = slots_[i].tokens;
    const std::size_t common = CommonLength(tokens, prompt);
    if (!slots_[i].busy && common == tokens.size() && common <= most && common > best.length) {
      best = {.length = common, .slot = i};
    }
    for (const std::unique_ptr<Entry>& entry : entries_) {
      const std::size_t length = entry->checkpoint->length();
      if (!std::ranges::contains(entry->slots, i) || length > std::min(common, most)) continue;
      // Among equals an idle slot, which can be gone back to in place.
      const bool better = length > best.length || (length == best.length && best.entry != nullptr &&
                                                   slots_[best.slot].busy && !slots_[i].busy);
      if (better) best = {.length = length, .slot = i, .entry = entry.get()};
    }
  }
  return best;
}

std::uint32_t PrefixCache::LeastMissed(std::uint32_t spared) const {
  std::uint32_t found = kNoSlot;
  for (std::uint32_t i = 0; i < slots_.size(); ++i) {
    if (slots_[i].busy || i == spared) continue;
    const auto rank = [&](std::uint32_t slot) {
      return std::pair(!slots_[slot].tokens.empty(), slots_[slot].last_used);
    };
    if (found == kNoSlot || rank(i) < rank(found)) found = i;
  }
  return found != kNoSlot ? found : spared;
}

PrefixCache::Start PrefixCache::Take(std::span<const model::Token> prompt, bool reuse) {
  ES_CHECK(!prompt.empty() && has_idle_slot());
  const Found found = reuse ? FindLongest(prompt) : Found();
  Start start = {.slot = found.slot, .length = found.length, .from = found.slot};
  if (found.length == 0) {
    start.slot = LeastMissed(kNoSlot);
  } else if (found.entry != nullptr) {
    const Slot& donor = slots_[found.slot];
    start.checkpoint = found.entry->checkpoint.get();
    // Going back in place costs what the slot holds beyond; a copy costs another slot's content.
    const bool in_place = !donor.busy && found.length * 2 >= donor.tokens.size();
    if (!in_place) start.slot = LeastMissed(donor.busy ? kNoSlot : found.slot);
  }
  const bool copied = start.slot != found.slot;
  Truncate(start.slot, copied ? 0 : start.length);
  if (copied && found.entry != nullptr) found.entry->slots.push_back(start.slot);

  Slot& slot = slots_[start.slot];
  slot.tokens.assign(prompt.begin(), prompt.begin() + static_cast<std::ptrdiff_t>(start.length));
  slot.busy = true;
  slot.last_used = ++clock_;
  for (const std::unique_ptr<Entry>& entry : entries_) {
    if (std::ranges::contains(entry->slots, start.slot)) entry->last_used = clock_;
  }
  return start;
}

void PrefixCache::Append(std::uint32_t slot, model::Token token) {
  slots_[slot].tokens.push_back(token);
}

bool PrefixCache::WantsCheckpoint(std::uint32_t slot) const {
  return budget_ > base::Bytes() &&
         std::ranges::none_of(entries_, [&](const std::unique_ptr<Entry>& entry) {
           return entry->checkpoint->length() == slots_[slot].tokens.size() &&
                  std::ranges::contains(entry->slots, slot);
         });
}

void PrefixCache::Keep(std::uint32_t slot, std::unique_ptr<model::SlotCheckpoint> checkpoint) {
  ES_CHECK(checkpoint->length() == slots_[slot].tokens.size());
  const base::Bytes bytes = checkpoint->bytes();
  if (bytes > budget_) return;
  while (bytes_ + bytes > budget_) {
    const auto oldest = std::ranges::min_element(
        entries_, {}, [](const std::unique_ptr<Entry>& entry) { return entry->last_used; });
    Drop(oldest->get());
  }
  bytes_ += bytes;
  entries_.push_back(std::make_unique<Entry>(
      Entry{.checkpoint = std::move(checkpoint), .slots = {slot}, .last_used = ++clock_}));
}

void PrefixCache::Release(std::uint32_t slot) {
  slots_[slot].busy = false;
  slots_[slot].last_used = ++clock_;
}

void PrefixCache::Forget(std::uint32_t slot) { Truncate(slot, 0); }

void PrefixCache::Truncate(std::uint32_t slot, std::size_t length) {
  std::vector<model::Token>& tokens = slots_[slot].tokens;
  tokens.resize(std::min(tokens.size(), length));
  std::vector<const Entry*> dropped;
  for (const std::unique_ptr<Entry>& entry : entries_) {
    if (entry->checkpoint->length() <= length) continue;
    std::erase(entry->slots, slot);
    if (entry->slots.empty()) dropped.push_back(entry.get());
  }
  for (const Entry* entry : dropped) Drop(entry);
}

void PrefixCache::Drop(const Entry* entry) {
  bytes_ -= entry->checkpoint->bytes();
  std::erase_if(entries_, [&](const std::unique_ptr<Entry>& one) { return one.get() == entry; });
}

}  // namespace engine
