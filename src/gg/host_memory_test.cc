#include "gg/host_memory.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace gg {
namespace {

using base::Bytes;

// A tree with the files of /proc and /sys that count.
class HostMemoryTest : public ::testing::Test {
 protected:
  void SetUp() override {
    Write("proc/meminfo", "MemTotal:  8388608 kB\nMemFree: 1 kB\nMemAvailable:  4194304 kB\n");
  }
  void TearDown() override { std::filesystem::remove_all(root_); }

  void Write(const std::filesystem::path& path, std::string_view text) {
    std::filesystem::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }
  void WriteVersion2(const std::filesystem::path& group, std::string_view limit,
                     std::string_view usage, std::string_view stat) {
    const auto folder = "sys/fs/cgroup" / group;
    Write(folder / "memory.max", limit);
    Write(folder / "memory.current", usage);
    Write(folder / "memory.stat", stat);
  }
  void WriteVersion1(const std::filesystem::path& group, std::string_view limit,
                     std::string_view usage, std::string_view stat) {
    const auto folder = "sys/fs/cgroup/memory" / group;
    Write(folder / "memory.limit_in_bytes", limit);
    Write(folder / "memory.usage_in_bytes", usage);
    Write(folder / "memory.stat", stat);
  }

  std::filesystem::path root_ = std::filesystem::path(::testing::TempDir()) /
                                ::testing::UnitTest::GetInstance()->current_test_info()->name();
};

TEST_F(HostMemoryTest, IsWhatTheKernelCallsAvailable) {
  EXPECT_EQ(AvailableHostMemory(root_), Bytes::GiB(4));
}

TEST_F(HostMemoryTest, IsUnknownWithoutTheKernelsWord) {
  Write("proc/meminfo", "MemTotal:  8388608 kB\n");
  EXPECT_EQ(AvailableHostMemory(root_), std::nullopt);
}

TEST_F(HostMemoryTest, LimitOfTheOwnGroupCountsWithoutItsPageCache) {
  Write("proc/self/cgroup", "0::/user/app\n");
  WriteVersion2("user/app", "1000000\n", "700000\n",
                "anon 1\ninactive_file 100000\nactive_file 50000\nfile 999\n");
  EXPECT_EQ(AvailableHostMemory(root_), Bytes(450000));
}

TEST_F(HostMemoryTest, TightestGroupAboveCounts) {
  Write("proc/self/cgroup", "0::/user/app\n");
  WriteVersion2("user/app", "1000000\n", "0\n", "");
  WriteVersion2("user", "500000\n", "100000\n", "");
  EXPECT_EQ(AvailableHostMemory(root_), Bytes(400000));
}

TEST_F(HostMemoryTest, NoLimitAndALargeLimitChangeNothing) {
  Write("proc/self/cgroup", "4:cpu,memory:/app\n0::/app\n");
  WriteVersion2("app", "max\n", "700000\n", "");
  WriteVersion1("app", "9223372036854771712\n", "700000\n", "");
  EXPECT_EQ(AvailableHostMemory(root_), Bytes::GiB(4));
}

TEST_F(HostMemoryTest, GroupAboveItsLimitLeavesNothing) {
  Write("proc/self/cgroup", "0::/app\n");
  WriteVersion2("app", "1000\n", "2000\n", "");
  EXPECT_EQ(AvailableHostMemory(root_), Bytes());
}

TEST_F(HostMemoryTest, Version1CountsTheGroupsBelow) {
  Write("proc/self/cgroup", "9:name=systemd:/x\n4:cpu,memory:/app\n");
  WriteVersion1("app", "1000000\n", "700000\n",
                "inactive_file 1\ntotal_inactive_file 200000\ntotal_active_file 0\n");
  EXPECT_EQ(AvailableHostMemory(root_), Bytes(500000));
}

TEST_F(HostMemoryTest, ContainerSeesItsGroupAtTheTopOfTheMount) {
  Write("proc/self/cgroup", "4:memory:/docker/0123\n0::/../outside\n");
  WriteVersion1("", "1000000\n", "600000\n", "");
  EXPECT_EQ(AvailableHostMemory(root_), Bytes(400000));
}

}  // namespace
}  // namespace gg
