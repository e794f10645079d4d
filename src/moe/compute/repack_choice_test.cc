#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "moe/compute/repack.h"

namespace moe {
namespace {

struct Host {
  explicit Host(std::optional<base::Bytes> available) {
    memory.available = [available] { return available; };
  }
  Repack For(Repack wanted, base::Bytes experts) {
    return RepackInMemory(wanted, experts, memory, log);
  }

  PackingMemory memory;
  std::vector<std::string> lines;
  base::Log log{[this](base::LogLevel, std::string_view line) { lines.emplace_back(line); }};
};

TEST(RepackInMemory, packs_what_fits_with_the_margin) {
  const base::Bytes experts = base::Bytes::MiB(4000);
  Host host(experts + PackingMargin(experts));
  EXPECT_EQ(host.For(Repack::kAuto, experts), Repack::kAuto);
  EXPECT_TRUE(host.lines.empty());
}

TEST(RepackInMemory, packs_nothing_of_a_model_larger_than_memory_and_says_so_once) {
  const base::Bytes experts = base::Bytes::MiB(4000);
  Host host(experts + PackingMargin(experts) - base::Bytes(1));
  EXPECT_EQ(host.For(Repack::kAuto, experts), Repack::kOff);
  ASSERT_EQ(host.lines.size(), 1U);
  EXPECT_NE(host.lines[0].find("used as the file has them"), std::string::npos) << host.lines[0];
}

TEST(RepackInMemory, packs_the_dense_part_where_no_expert_is_on_the_cpu) {
  EXPECT_EQ(Host{base::Bytes()}.For(Repack::kAuto, base::Bytes()), Repack::kAuto);
}

TEST(RepackInMemory, packs_nothing_where_memory_is_unknown) {
  EXPECT_EQ(Host(std::nullopt).For(Repack::kAuto, base::Bytes(1)), Repack::kOff);
}

TEST(RepackInMemory, leaves_off_alone) {
  Host host{base::Bytes()};
  EXPECT_EQ(host.For(Repack::kOff, base::Bytes::MiB(4000)), Repack::kOff);
  EXPECT_TRUE(host.lines.empty());
}

}  // namespace
}  // namespace moe
