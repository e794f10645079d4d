// Models loaded as `expert-split run` does it, with their weights packed and in the mapped file:
// the bit rule holds in both, packing adds no error, and what was packed is not in memory twice.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/unique_fd.h"
#include "cli/loaded_model.h"
#include "layout_fixture.h"
#include "support/logits_compare.h"
#include "support/test_models.h"

namespace test {
namespace {

constexpr std::size_t kTokens = 60;

// The experts' bytes in the mapping of a placed model.
using Stacks = std::vector<std::span<const std::byte>>;

Stacks ExpertStacks(const cli::ModelPlacement& placed) {
  Stacks stacks;
  const auto add = [&](const moe::ExpertStack& stack) {
    stacks.push_back(placed.file.shards()[stack.shard].bytes().subspan(
        stack.offset, stack.bytes_per_expert.count() * placed.description.shape.num_experts));
  };
  for (const moe::LayerStacks& layer : placed.description.stacks) {
    add(layer.gate);
    if (layer.up) add(*layer.up);
    add(layer.down);
  }
  return stacks;
}

// On the CPU; `stacks` may be nullptr.
std::unique_ptr<cli::LoadedModel> Load(const std::string& name, const std::string& repack,
                                       Stacks* stacks = nullptr) {
  return LoadLayout(ModelPath(name), "cpu",
                    {.repack = repack, .on_placed = [&](const cli::ModelPlacement& placed) {
                       if (stacks != nullptr) *stacks = ExpertStacks(placed);
                     }});
}

// [kTokens, vocab], from an empty slot, `chunk` tokens a step.
std::vector<float> Logits(cli::LoadedModel& model, std::size_t chunk) {
  model::ModelBackend& backend = model.backend();
  backend.ClearSlot(0);
  std::vector<float> logits;
  std::uint32_t x = 7;
  for (std::size_t begin = 0; begin < kTokens; begin += chunk) {
    std::vector<model::BatchRow> rows;
    for (std::size_t i = begin; i < std::min(begin + chunk, kTokens); ++i) {
      x = x * 1664525U + 1013904223U;
      rows.push_back({.token = static_cast<std::int32_t>((x >> 12) % backend.vocab_size()),
                      .slot = 0,
                      .position = static_cast<std::uint32_t>(i),
                      .wants_logits = true});
    }
    auto answer = backend.Evaluate(rows, {});
    if (!answer) {
      ADD_FAILURE() << answer.error().message;
      return {};
    }
    logits.insert(logits.end(), answer->begin(), answer->end());
  }
  return logits;
}

// Pages of `bytes` that are mapped into this process now. The kernel maps pages around one that is
// read, 64 KiB at most: those that a neighbour's may bring are left out.
std::size_t ResidentPages(std::span<const std::byte> bytes) {
  constexpr std::size_t kAround = 64 * 1024;
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto address = reinterpret_cast<std::uintptr_t>(bytes.data());
  const std::uintptr_t begin = (address + kAround) / page;
  const std::uintptr_t end = (address + bytes.size() - kAround) / page;
  std::vector<std::uint64_t> entries(end - begin);
  EXPECT_GT(entries.size(), 16U) << "a stack too small to tell";
  const base::UniqueFd map(::open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC));
  EXPECT_EQ(::pread(map.get(), entries.data(), entries.size() * 8, static_cast<off_t>(begin * 8)),
            static_cast<ssize_t>(entries.size() * 8));
  // Bit 63: the page is present.
  return static_cast<std::size_t>(
      std::ranges::count_if(entries, [](std::uint64_t entry) { return entry >> 63 != 0; }));
}

std::size_t ResidentPages(const Stacks& stacks) {
  std::size_t sum = 0;
  for (const auto& stack : stacks) sum += ResidentPages(stack);
  return sum;
}

class RepackTest : public ::testing::TestWithParam<const char*> {};

TEST_P(RepackTest, RowsKeepTheirBitsInEitherLayout) {
  for (const char* repack : {"auto", "off"}) {
    const auto model = Load(GetParam(), repack);
    ASSERT_NE(model, nullptr);
    const std::size_t width = model->backend().vocab_size();
    const std::vector<float> whole = Logits(*model, kTokens);
    ASSERT_EQ(whole.size(), kTokens * width);
    for (const auto& [threads, chunk] : {std::pair{3U, 7U}, std::pair{2U, 1U}, std::pair{1U, 1U}}) {
      model->backend().SetThreads(threads);
      EXPECT_TRUE(SameBits(whole, Logits(*model, chunk), width))
          << "--repack " << repack << ", " << threads << " threads, chunks of " << chunk;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, RepackTest,
                         ::testing::Values("tiny-q8_0", "forward-q4_k", "forward-iq2_xxs"),
                         [](const auto& param) {
                           std::string name = param.param;
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

TEST(RepackMemoryTest, PackedExpertsAreNotResidentInTheFileToo) {
  Stacks stacks;
  const auto model = Load("tiny-q8_0", "auto", &stacks);
  ASSERT_NE(model, nullptr);
  EXPECT_EQ(ResidentPages(stacks), 0U) << "after loading";
  Logits(*model, kTokens);
  EXPECT_EQ(ResidentPages(stacks), 0U) << "after computing with them";
}

TEST(RepackMemoryTest, MappedExpertsAreReadWhereTheyAre) {
  Stacks stacks;
  const auto model = Load("tiny-q8_0", "off", &stacks);
  ASSERT_NE(model, nullptr);
  Logits(*model, kTokens);
  for (const auto& stack : stacks) EXPECT_GT(ResidentPages(stack), 0U);
}

}  // namespace
}  // namespace test
