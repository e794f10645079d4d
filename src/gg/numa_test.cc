#include "gg/numa.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>

#include <thread>

namespace gg {
namespace {

using ::testing::IsEmpty;
using ::testing::Not;

std::vector<std::uint32_t> CpusOfThisThread() {
  cpu_set_t set;
  CPU_ZERO(&set);
  EXPECT_EQ(::sched_getaffinity(0, sizeof set, &set), 0);
  std::vector<std::uint32_t> cpus;
  for (std::uint32_t cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
  }
  return cpus;
}

TEST(NumaTest, NodesHoldEveryCpuOfTheProcessOnce) {
  std::vector<std::uint32_t> cpus;
  std::uint32_t next = 0;
  for (const NumaNode& node : NumaNodes()) {
    EXPECT_GE(node.index, next) << "in order";
    next = node.index + 1;
    cpus.insert(cpus.end(), node.cpus.begin(), node.cpus.end());
  }
  EXPECT_THAT(cpus, ::testing::UnorderedElementsAreArray(CpusOfThisThread()));
}

TEST(NumaTest, AThreadStaysOnTheCpusItIsGiven) {
  std::thread([] {
    const std::vector<std::uint32_t> one = {CpusOfThisThread().back()};
    EXPECT_TRUE(RunOn(one));
    EXPECT_EQ(CpusOfThisThread(), one);
    EXPECT_FALSE(RunOn({})) << "no CPU at all";
    EXPECT_EQ(CpusOfThisThread(), one);
  }).join();
}

TEST(NumaTest, MemoryOfANodeCanBeUsed) {
  std::vector<std::byte> memory(1 << 20);
  ASSERT_THAT(NumaNodes(), Not(IsEmpty()));
  PreferNode(memory, NumaNodes().back().index);
  PreferNode(memory, 9999);  // no such node: nothing happens
  PreferNode({}, 0);
  memory[memory.size() / 2] = std::byte{1};
  EXPECT_EQ(memory[memory.size() / 2], std::byte{1});
}

}  // namespace
}  // namespace gg
