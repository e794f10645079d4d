// What a loaded model keeps resident: nothing that can stay mapped, and nothing twice.
//
// The model is a hole of 130 MB, so a copy of its experts would stand out by far.
#include <gtest/gtest.h>

#include <fstream>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "forward_fixture.h"
#include "support/resident_memory.h"
#include "support/test_models.h"

namespace {

using test::Experts;
using test::ForwardModel;

// Thread stacks, the allocator's spare memory, graphs' own data.
constexpr base::Bytes kAllowance = base::Bytes::MiB(16);
constexpr std::uint32_t kContext = 1024;

// Of the mapping of the file named `path`.
base::Bytes ResidentOf(const std::string& path) {
  std::ifstream maps("/proc/self/smaps");
  base::Bytes sum;
  bool found = false;
  bool inside = false;
  for (std::string line; std::getline(maps, line);) {
    // "7f00-7fff r--s 00000000 fe:00 12 /path", then lines as "Rss:  12 kB".
    const std::string first = line.substr(0, line.find(' '));
    if (!first.ends_with(':')) {
      inside = line.ends_with(path);
      found = found || inside;
    } else if (inside && first == "Rss:") {
      sum += base::Bytes::KiB(std::stoull(line.substr(first.size())));
    }
  }
  EXPECT_TRUE(found) << path << " is not mapped";
  return sum;
}

bool MemoryIsOurs() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return false;
#else
  return true;
#endif
}

class MemoryTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!MemoryIsOurs()) GTEST_SKIP() << "a sanitizer's memory would be counted";
    // What backends take once is none of the model's.
    auto devices = gg::DiscoverDevices();
    ASSERT_TRUE(devices) << devices.error().message;
    has_vulkan_ = gg::FindDevice(*devices, "vulkan:0") != nullptr;
  }
  bool has_vulkan_ = false;
};

TEST_F(MemoryTest, OnTheCpuOnlyStateAndBuffersAreOurOwnUnlessWeightsArePacked) {
  const base::Bytes before = test::ResidentAnonymous();
  auto model = ForwardModel::Load(test::ModelPath("memory"),
                                  {.context_length = kContext, .repack = moe::Repack::kOff});
  ASSERT_NE(model, nullptr);
  ASSERT_FALSE(model->Logits(model->Tokens(512)).empty());
  const model::qwen35moe::Qwen35MoeBackend& backend = model->backend();
  EXPECT_EQ(backend.dense_bytes(), base::Bytes());
  const base::Bytes counted = backend.state_bytes() + backend.graph_bytes();
  EXPECT_LT(test::ResidentAnonymous() - before,
            base::Bytes(counted.count() / 10 * 11) + kAllowance);
}

// What `--repack auto` of the dense part counts.
TEST_F(MemoryTest, StateIsThereAndComputeBuffersAreKnownBeforePackingIsDecided) {
  const base::Bytes before = test::ResidentAnonymous();
  base::Bytes resident;
  std::vector<std::string> lines;
  const auto load = [&](base::Bytes available) {
    return ForwardModel::Load(test::ModelPath("memory"),
                              {.num_slots = 3,
                               .context_length = 16 * kContext,
                               .log = base::Log([&](base::LogLevel level, std::string_view line) {
                                 if (level == base::LogLevel::kInfo) lines.emplace_back(line);
                               }),
                               .packing_memory = {.available = [&resident, before, available] {
                                 resident = test::ResidentAnonymous() - before;
                                 return available;
                               }}});
  };
  auto packed = load(base::Bytes::Max());
  ASSERT_NE(packed, nullptr);
  const base::Bytes packed_bytes = packed->backend().packed_bytes();
  EXPECT_GT(packed_bytes, base::Bytes());
  EXPECT_GT(packed->backend().state_bytes(), base::Bytes::MiB(16)) << "too small to be seen";
  EXPECT_GE(resident, packed->backend().state_bytes());
  packed.reset();

  auto mapped = load(base::Bytes());
  ASSERT_NE(mapped, nullptr);
  EXPECT_EQ(mapped->backend().packed_bytes(), base::Bytes());
  const base::Bytes untouched = mapped->backend().untouched_host_bytes();
  ASSERT_TRUE(mapped->backend().ReserveGraphs());
  EXPECT_EQ(mapped->backend().graph_bytes(), untouched);
  mapped.reset();

  lines.clear();
  const base::Bytes need = packed_bytes + moe::PackingMargin(packed_bytes) + untouched;
  auto enough = load(need);
  ASSERT_NE(enough, nullptr);
  EXPECT_EQ(enough->backend().packed_bytes(), packed_bytes);
  EXPECT_TRUE(lines.empty());
  enough.reset();
  auto too_little = load(need - base::Bytes(1));
  ASSERT_NE(too_little, nullptr);
  EXPECT_EQ(too_little->backend().packed_bytes(), base::Bytes());
  EXPECT_EQ(lines.size(), 1U);
}

TEST_F(MemoryTest, PagesOfWhatADeviceOwnsAreGivenBack) {
  if (!has_vulkan_) GTEST_SKIP() << "no Vulkan device";
  auto model = ForwardModel::Load(
      test::ModelPath("memory"),
      {.primary = "vulkan:0", .experts = Experts::kOnPrimary, .context_length = kContext});
  ASSERT_NE(model, nullptr);
  EXPECT_LT(ResidentOf("/memory.gguf"), kAllowance);
}

}  // namespace
