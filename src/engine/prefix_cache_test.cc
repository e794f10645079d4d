#include "engine/prefix_cache.h"

#include <gtest/gtest.h>

#include <set>

namespace engine {
namespace {

using Tokens = std::vector<model::Token>;

class FakeCheckpoint final : public model::SlotCheckpoint {
 public:
  explicit FakeCheckpoint(std::size_t length) : length_(length) {}
  std::size_t length() const override { return length_; }
  base::Bytes bytes() const override { return base::Bytes(100); }

 private:
  std::size_t length_;
};

// Runs a prompt to its end, with checkpoints at `boundaries`, and leaves its slot idle.
PrefixCache::Start Compute(PrefixCache& cache, const Tokens& prompt,
                           const std::set<std::size_t>& boundaries = {}, bool release = true) {
  const PrefixCache::Start start = cache.Take(prompt, true);
  for (std::size_t i = start.length; i < prompt.size(); ++i) {
    cache.Append(start.slot, prompt[i]);
    if (boundaries.contains(i + 1) && cache.WantsCheckpoint(start.slot)) {
      cache.Keep(start.slot, std::make_unique<FakeCheckpoint>(i + 1));
    }
  }
  if (release) cache.Release(start.slot);
  return start;
}

Tokens Range(model::Token first, std::size_t count) {
  Tokens tokens(count);
  for (std::size_t i = 0; i < count; ++i) tokens[i] = first + static_cast<model::Token>(i);
  return tokens;
}

Tokens Join(Tokens a, const Tokens& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

constexpr base::Bytes kPlenty = base::Bytes(100000);

TEST(PrefixCacheTest, AGrowingPromptGoesOnAtItsSlotsEnd) {
  PrefixCache cache(2, kPlenty);
  const auto first = Compute(cache, Range(1, 10));
  EXPECT_EQ(first.length, 0U);
  const auto second = Compute(cache, Range(1, 15));
  EXPECT_EQ(second.slot, first.slot);
  EXPECT_EQ(second.length, 10U);
  EXPECT_EQ(second.checkpoint, nullptr);
}

TEST(PrefixCacheTest, AtLeastOneTokenIsLeftToCompute) {
  PrefixCache cache(1, kPlenty);
  Compute(cache, Range(1, 10), {4, 10});
  const auto again = Compute(cache, Range(1, 10));
  ASSERT_NE(again.checkpoint, nullptr);
  EXPECT_EQ(again.length, 4U);
}

TEST(PrefixCacheTest, AnEditedPromptGoesBackToTheLastCommonCheckpoint) {
  PrefixCache cache(2, kPlenty);
  const auto first = Compute(cache, Range(1, 20), {5, 12, 18});
  const auto edited = Compute(cache, Join(Range(1, 15), Range(100, 9)), {12});
  ASSERT_NE(edited.checkpoint, nullptr);
  EXPECT_EQ(edited.slot, first.slot) << "in place: most of the slot is kept";
  EXPECT_EQ(edited.length, 12U);
  EXPECT_EQ(edited.checkpoint->length(), 12U);
  // The checkpoint behind the edit is of no sequence any more.
  EXPECT_EQ(cache.num_checkpoints(), 2U);
  const auto original = Compute(cache, Range(1, 20));
  EXPECT_EQ(original.length, 12U);
}

TEST(PrefixCacheTest, AShortCommonStartIsCopiedAndTheOtherSequenceKept) {
  PrefixCache cache(2, kPlenty);
  const auto first = Compute(cache, Range(1, 40), {5});
  const auto other = Compute(cache, Join(Range(1, 5), Range(100, 30)));
  ASSERT_NE(other.checkpoint, nullptr);
  EXPECT_NE(other.slot, first.slot);
  EXPECT_EQ(other.from, first.slot);
  EXPECT_EQ(other.length, 5U);
  EXPECT_EQ(Compute(cache, Range(1, 41)).length, 40U);
  EXPECT_EQ(cache.num_checkpoints(), 1U) << "shared by both slots";
  // It lives on with the copy when the first slot's sequence goes.
  cache.Forget(first.slot);
  EXPECT_EQ(cache.num_checkpoints(), 1U);
  cache.Forget(other.slot);
  EXPECT_EQ(cache.num_checkpoints(), 0U);
  EXPECT_EQ(cache.checkpoint_bytes(), base::Bytes());
}

TEST(PrefixCacheTest, ARunningSlotCanBeCopiedFrom) {
  PrefixCache cache(2, kPlenty);
  const auto running = Compute(cache, Range(1, 10), {6}, /*release=*/false);
  const auto other = Compute(cache, Join(Range(1, 8), {99, 98}));
  EXPECT_NE(other.slot, running.slot);
  EXPECT_EQ(other.from, running.slot);
  EXPECT_EQ(other.length, 6U);
}

TEST(PrefixCacheTest, ARunningSlotsEndIsNobodyElses) {
  PrefixCache cache(2, kPlenty);
  const auto running = Compute(cache, Range(1, 10), {}, /*release=*/false);
  const auto other = Compute(cache, Range(1, 15));
  EXPECT_NE(other.slot, running.slot);
  EXPECT_EQ(other.length, 0U);
}

TEST(PrefixCacheTest, TheLeastRecentlyUsedSlotIsGivenAway) {
  PrefixCache cache(2, kPlenty);
  const auto a = Compute(cache, Range(1, 10));
  const auto b = Compute(cache, Range(100, 10));
  EXPECT_NE(a.slot, b.slot) << "an empty slot first";
  Compute(cache, Range(1, 12));
  EXPECT_EQ(Compute(cache, Range(200, 10)).slot, b.slot);
}

TEST(PrefixCacheTest, CheckpointsStayWithinTheBudgetLeastRecentlyUsedFirst) {
  PrefixCache cache(3, base::Bytes(250));
  Compute(cache, Range(1, 10), {5});
  EXPECT_EQ(cache.checkpoint_bytes(), base::Bytes(100));
  Compute(cache, Range(100, 10), {5});
  EXPECT_EQ(cache.num_checkpoints(), 2U);
  Compute(cache, Range(1, 12));  // uses the first one's slot
  Compute(cache, Range(200, 10), {5});
  EXPECT_EQ(cache.num_checkpoints(), 2U);
  EXPECT_EQ(cache.checkpoint_bytes(), base::Bytes(200));
  EXPECT_EQ(Compute(cache, Join(Range(1, 9), {77})).length, 5U);
  EXPECT_EQ(Compute(cache, Join(Range(100, 9), {77})).length, 0U) << "its checkpoint was dropped";
}

TEST(PrefixCacheTest, ACheckpointBeyondTheBudgetIsNotKept) {
  PrefixCache cache(1, base::Bytes(99));
  Compute(cache, Range(1, 10), {5});
  EXPECT_EQ(cache.num_checkpoints(), 0U);
  PrefixCache none(1, base::Bytes());
  const auto start = none.Take(Range(1, 3), true);
  EXPECT_FALSE(none.WantsCheckpoint(start.slot));
}

TEST(PrefixCacheTest, AForgottenSlotIsNeverReused) {
  PrefixCache cache(1, kPlenty);
  const auto first = Compute(cache, Range(1, 10), {5}, /*release=*/false);
  cache.Forget(first.slot);
  cache.Release(first.slot);
  EXPECT_EQ(Compute(cache, Range(1, 15)).length, 0U);
  EXPECT_EQ(cache.num_checkpoints(), 0U);
}

TEST(PrefixCacheTest, ReuseCanBeDeclined) {
  PrefixCache cache(1, kPlenty);
  Compute(cache, Range(1, 10), {5});
  EXPECT_EQ(cache.Take(Range(1, 15), false).length, 0U);
  EXPECT_EQ(cache.num_checkpoints(), 0U);
  EXPECT_FALSE(cache.has_idle_slot());
}

}  // namespace
}  // namespace engine
