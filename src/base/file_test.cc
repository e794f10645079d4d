#include "base/file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <utility>

namespace base {
namespace {

class FileTest : public ::testing::Test {
 protected:
  void SetUp() override { std::filesystem::create_directories(folder_); }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string Path(const std::string& name) const { return folder_ / name; }

  std::filesystem::path folder_ = std::filesystem::path(::testing::TempDir()) /
                                  ::testing::UnitTest::GetInstance()->current_test_info()->name();
};

TEST_F(FileTest, WritesAndReadsBack) {
  ASSERT_TRUE(WriteFileAtomically(Path("a"), "one"));
  ASSERT_TRUE(WriteFileAtomically(Path("a"), "two"));
  auto content = ReadFile(Path("a"), Bytes(3));
  ASSERT_TRUE(content);
  EXPECT_EQ(*content, "two");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_), {}), 1)
      << "a temporary file was left behind";
}

TEST_F(FileTest, FailedWriteLeavesNothingBehind) {
  std::filesystem::create_directory(Path("taken"));
  auto written = WriteFileAtomically(Path("taken"), "x");
  ASSERT_FALSE(written);
  EXPECT_EQ(written.error().kind, ErrorKind::kInvalidInput);
  EXPECT_NE(written.error().message.find(Path("taken")), std::string::npos);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_), {}), 1);
}

TEST_F(FileTest, PathsWhereNoFileCanBeMadeAreTheCallersFault) {
  ASSERT_TRUE(WriteFileAtomically(Path("a"), "x"));
  for (const std::string& path : {Path("missing/b"), Path("a/b"), Path(std::string(300, 'b'))}) {
    auto written = WriteFileAtomically(path, "x");
    ASSERT_FALSE(written);
    EXPECT_EQ(written.error().kind, ErrorKind::kInvalidInput) << written.error().message;
    EXPECT_NE(written.error().message.find(path), std::string::npos);
    auto checked = CheckWritable(path);
    ASSERT_FALSE(checked);
    EXPECT_EQ(checked.error().message, written.error().message);
  }
}

TEST_F(FileTest, CheckingThatAFileCanBeWrittenLeavesEverythingAsItWas) {
  ASSERT_TRUE(WriteFileAtomically(Path("a"), "x"));
  std::filesystem::create_symlink("a", Path("link"));
  EXPECT_TRUE(CheckWritable(Path("a")));
  EXPECT_TRUE(CheckWritable(Path("link")));
  EXPECT_TRUE(CheckWritable(Path("new")));
  EXPECT_TRUE(CheckWritable("/dev/null"));
  EXPECT_FALSE(CheckWritable(folder_));
  const std::filesystem::directory_iterator files(folder_);
  EXPECT_EQ(std::distance(begin(files), end(files)), 2);
  EXPECT_EQ(*ReadFile(Path("a"), Bytes(10)), "x");
}

TEST_F(FileTest, FullDeviceIsAnIoError) {
  std::filesystem::create_symlink("/dev/full", Path("full"));
  auto written = WriteFileAtomically(Path("full"), "x");
  ASSERT_FALSE(written);
  EXPECT_EQ(written.error().kind, ErrorKind::kIo) << written.error().message;
}

TEST_F(FileTest, LinkStaysALinkToWhatIsWritten) {
  ASSERT_TRUE(WriteFileAtomically(Path("a"), "longer"));
  std::filesystem::create_symlink("a", Path("link"));
  ASSERT_TRUE(WriteFileAtomically(Path("link"), "new"));
  EXPECT_TRUE(std::filesystem::is_symlink(Path("link")));
  auto content = ReadFile(Path("a"), Bytes(10));
  ASSERT_TRUE(content);
  EXPECT_EQ(*content, "new");
}

TEST_F(FileTest, RefusesWhatIsMissingTooLargeOrNotRegular) {
  ASSERT_TRUE(WriteFileAtomically(Path("a"), "1234"));
  EXPECT_FALSE(ReadFile(Path("missing"), Bytes(10)));
  EXPECT_FALSE(ReadFile(Path("a"), Bytes(3)));
  EXPECT_FALSE(ReadFile(folder_, Bytes(10)));
  ASSERT_EQ(mkfifo(Path("fifo").c_str(), 0600), 0);
  EXPECT_FALSE(ReadFile(Path("fifo"), Bytes(10)));
  EXPECT_FALSE(MappedFile::Open(Path("fifo")));
}

TEST_F(FileTest, MapsAndKeepsItsAddressWhenMoved) {
  ASSERT_TRUE(WriteFileAtomically(Path("a"), "12345"));
  auto mapped = MappedFile::Open(Path("a"));
  ASSERT_TRUE(mapped);
  const std::byte* address = mapped->bytes().data();
  MappedFile moved = std::move(*mapped);
  EXPECT_EQ(moved.bytes().data(), address);
  ASSERT_EQ(moved.bytes().size(), 5u);
  moved.ReleasePages(0, 5);
  EXPECT_EQ(moved.bytes()[4], std::byte{'5'});
  ASSERT_TRUE(WriteFileAtomically(Path("empty"), ""));
  auto empty = MappedFile::Open(Path("empty"));
  ASSERT_TRUE(empty);
  EXPECT_TRUE(empty->bytes().empty());
}

}  // namespace
}  // namespace base
