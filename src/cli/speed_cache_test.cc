#include "cli/speed_cache.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "base/file.h"

namespace cli {
namespace {

class SpeedCacheTest : public ::testing::Test {
 protected:
  void SetUp() override { std::filesystem::remove_all(folder_); }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  const std::string folder_ = ::testing::TempDir() + "speed_cache_test";
  const std::string path_ = folder_ + "/speeds.json";
  const SpeedCache cache_{path_};
  const moe::TargetSpeed speed_{1.25e9, 3e10, 0.000'031};
};

TEST_F(SpeedCacheTest, RemembersEachKey) {
  EXPECT_EQ(cache_.Find("cpu"), std::nullopt);
  EXPECT_TRUE(cache_.Store("cpu", speed_));
  EXPECT_TRUE(cache_.Store("a \"name\" with \xff", {2, 3, 0}));
  EXPECT_EQ(cache_.Find("cpu"), speed_);
  EXPECT_EQ(cache_.Find("gpu"), std::nullopt);
  EXPECT_TRUE(cache_.Store("cpu", {7, 8, 9}));
  EXPECT_EQ(cache_.Find("cpu"), (moe::TargetSpeed{7, 8, 9}));
  const std::filesystem::directory_iterator files(folder_);
  EXPECT_EQ(std::distance(begin(files), end(files)), 1);
}

TEST_F(SpeedCacheTest, ADamagedFileIsAnEmptyOneAndIsReplaced) {
  ASSERT_TRUE(cache_.Store("cpu", speed_));
  const std::string good = *base::ReadFile(path_, base::Bytes::MiB(1));
  const auto with = [&](std::string_view from, std::string_view to) {
    std::string text = good;
    return text.replace(text.find(from), from.size(), to);
  };
  for (const std::string& text :
       {std::string(), std::string("[]"), good.substr(0, good.size() / 2),
        with("\"version\": 1", "\"version\": 2"), with("1250000000.0", "-1"),
        with("1250000000.0", "\"fast\""), with("1250000000.0", "0"), with("3.1e-05", "-1"),
        with("\"layer_seconds\"", "\"other\""), with("\"cpu\": {", "\"cpu\": 1, \"x\": {")}) {
    SCOPED_TRACE(text);
    std::ofstream(path_, std::ios::trunc) << text;
    EXPECT_EQ(cache_.Find("cpu"), std::nullopt);
    EXPECT_TRUE(cache_.Store("cpu", speed_));
    EXPECT_EQ(cache_.Find("cpu"), speed_);
  }
}

TEST_F(SpeedCacheTest, WhereNothingCanBeWrittenNothingIsKept) {
  EXPECT_FALSE(SpeedCache("").Store("cpu", speed_));
  EXPECT_EQ(SpeedCache("").Find("cpu"), std::nullopt);
  EXPECT_FALSE(SpeedCache("/dev/null/speeds.json").Store("cpu", speed_));
}

TEST_F(SpeedCacheTest, LiesInTheUsersCacheFolder) {
  ::setenv("XDG_CACHE_HOME", "/somewhere", 1);
  ::setenv("HOME", "/home/me", 1);
  EXPECT_EQ(SpeedCache::DefaultPath(), "/somewhere/expert-split/speeds.json");
  ::setenv("XDG_CACHE_HOME", "relative", 1);
  EXPECT_EQ(SpeedCache::DefaultPath(), "/home/me/.cache/expert-split/speeds.json");
  ::unsetenv("XDG_CACHE_HOME");
  EXPECT_EQ(SpeedCache::DefaultPath(), "/home/me/.cache/expert-split/speeds.json");
  ::unsetenv("HOME");
  EXPECT_EQ(SpeedCache::DefaultPath(), "");
}

}  // namespace
}  // namespace cli
