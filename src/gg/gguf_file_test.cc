#include "gg/gguf_file.h"

#include <fcntl.h>
#include <ggml.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <utility>

#include "base/unique_fd.h"
#include "support/gguf_bytes.h"

namespace gg {
namespace {

using test_support::AsBytes;
using test_support::GgufBytes;
using test_support::Raw;
using test_support::RawText;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr std::uint64_t kHuge = std::uint64_t{1} << 62;

base::Result<GgufFile> ParseBytes(const std::string& content) {
  return GgufFile::Parse(AsBytes(content), "m.gguf");
}

// The message of the refusal, which must be one line, of the right kind, and name the file.
std::string Refusal(const std::string& content) {
  auto file = ParseBytes(content);
  if (file) return "accepted";
  EXPECT_EQ(file.error().kind, base::ErrorKind::kCorruptModel);
  EXPECT_THAT(file.error().message, HasSubstr("m.gguf"));
  EXPECT_THAT(file.error().message, Not(HasSubstr("\n")));
  return file.error().message;
}

std::string RefusedKey(std::uint32_t type, const std::string& value) {
  return Refusal(GgufBytes().RawKey("the.key", type, value).Build());
}

GgufBytes SmallModel() {
  return GgufBytes()
      .Text("general.architecture", "fakemoe")
      .Tensor("a.weight", GGML_TYPE_F32, {4, 3}, Raw(1.5F))
      .Tensor("b.weight", GGML_TYPE_Q4_0, {64, 2});
}

TEST(GgufFileTest, ReadsKeysOfEveryType) {
  auto file = ParseBytes(GgufBytes()
                             .Text("text", std::string("a\0b", 3))
                             .Number("number", 7)
                             .Real("real", 0.5F)
                             .Flag("flag", true)
                             .RawKey("i8", GgufBytes::kI8, Raw(std::int8_t{-3}))
                             .RawKey("u16", GgufBytes::kU16, Raw(std::uint16_t{60000}))
                             .RawKey("u64", GgufBytes::kU64, Raw(~std::uint64_t{0}))
                             .RawKey("f64", GgufBytes::kF64, Raw(1e300))
                             .Numbers("numbers", {1, -2})
                             .Texts("texts", {"x", ""})
                             .Build());
  ASSERT_TRUE(file) << file.error().message;
  EXPECT_EQ(file->String("text").value(), std::string("a\0b", 3));
  EXPECT_EQ(file->Uint32("number").value(), 7U);
  EXPECT_EQ(file->Float("real").value(), 0.5F);
  EXPECT_EQ(file->Float("number").value(), 7.0F);
  EXPECT_TRUE(file->Bool("flag").value());
  EXPECT_EQ(file->Uint32("u16").value(), 60000U);
  EXPECT_THAT(file->IntArray("numbers").value(), ElementsAre(1, -2));
  EXPECT_TRUE(file->Has("texts"));
  EXPECT_FALSE(file->Uint32("i8")) << "negative";
  EXPECT_FALSE(file->Uint32("u64")) << "too large";
  EXPECT_FALSE(file->Float("f64")) << "too large";
  EXPECT_FALSE(file->Bool("number"));
  EXPECT_FALSE(file->IntArray("texts"));
  EXPECT_THAT(file->String("absent").error().message, HasSubstr("absent is missing"));
  EXPECT_THAT(file->String("number").error().message, HasSubstr("number is not a string"));
}

TEST(GgufFileTest, ReadsTensorsAndTheirExtents) {
  const std::string content = SmallModel().Build();
  auto file = ParseBytes(content);
  ASSERT_TRUE(file) << file.error().message;
  ASSERT_EQ(file->tensors().size(), 2U);
  const GgufTensor* a = file->FindTensor("a.weight");
  const GgufTensor* b = file->FindTensor("b.weight");
  ASSERT_NE(a, nullptr);
  ASSERT_NE(b, nullptr);
  EXPECT_THAT(a->shape, ElementsAre(4U, 3U));
  EXPECT_EQ(a->bytes, base::Bytes(48));
  EXPECT_EQ(a->offset % 32, 0U);
  EXPECT_EQ(content.substr(a->offset, 4), Raw(1.5F));
  EXPECT_EQ(b->type, GGML_TYPE_Q4_0);
  EXPECT_EQ(b->bytes, base::Bytes(4 * 18));
  EXPECT_EQ(b->offset, a->offset + 64);
  EXPECT_EQ(file->FindTensor("c.weight"), nullptr);
}

TEST(GgufFileTest, ReadsVersion2AndAnotherAlignment) {
  EXPECT_TRUE(ParseBytes(SmallModel().Version(2).Build()));
  auto file = ParseBytes(SmallModel().Number("general.alignment", 4096).Alignment(4096).Build());
  ASSERT_TRUE(file) << file.error().message;
  EXPECT_EQ(file->FindTensor("b.weight")->offset, 8192U);
}

TEST(GgufFileTest, EveryCutIsNoticed) {
  const std::string whole = SmallModel().Number("general.alignment", 8).Alignment(8).Build();
  ASSERT_TRUE(ParseBytes(whole));
  for (std::size_t size = 0; size < whole.size(); ++size) {
    EXPECT_NE(Refusal(whole.substr(0, size)), "accepted") << size << " of " << whole.size();
  }
}

TEST(GgufFileTest, RefusesWhatIsNoGguf) {
  EXPECT_THAT(Refusal(""), HasSubstr("empty"));
  EXPECT_THAT(Refusal("GGU"), HasSubstr("not a GGUF file"));
  EXPECT_THAT(Refusal(std::string(100, 'x')), HasSubstr("not a GGUF file"));
  EXPECT_THAT(Refusal(SmallModel().Version(1).Build()), HasSubstr("version 1"));
  EXPECT_THAT(Refusal(SmallModel().Version(4).Build()), HasSubstr("version 4"));
  EXPECT_THAT(Refusal(SmallModel().Version(0x03000000).Build()), HasSubstr("big-endian"));
}

TEST(GgufFileTest, RefusesCountsBeyondTheFile) {
  EXPECT_THAT(Refusal(SmallModel().KeyCount(kHuge).Build()), HasSubstr("keys announced"));
  EXPECT_THAT(Refusal(SmallModel().TensorCount(kHuge).Build()), HasSubstr("tensors announced"));
  EXPECT_THAT(Refusal(SmallModel().TensorCount(3).Build()), Not(HasSubstr("accepted")));
  EXPECT_THAT(RefusedKey(GgufBytes::kString, Raw(kHuge)), HasSubstr("the.key"));
  EXPECT_THAT(RefusedKey(GgufBytes::kString, Raw(~std::uint64_t{0})), HasSubstr("the.key"));
  for (const std::uint32_t type : {GgufBytes::kU8, GgufBytes::kF64, GgufBytes::kString}) {
    EXPECT_THAT(RefusedKey(GgufBytes::kArray, Raw(type) + Raw(kHuge)), HasSubstr("the.key"));
  }
}

TEST(GgufFileTest, RefusesBadKeys) {
  EXPECT_THAT(RefusedKey(13, Raw(kHuge)), HasSubstr("unknown type 13"));
  EXPECT_THAT(RefusedKey(GgufBytes::kBool, Raw(std::uint8_t{2})), HasSubstr("flag of value 2"));
  const std::string pad(64, '\0');
  EXPECT_THAT(RefusedKey(GgufBytes::kArray, Raw(99U) + Raw(std::uint64_t{1}) + pad),
              HasSubstr("unknown type 99"));
  EXPECT_THAT(RefusedKey(GgufBytes::kArray,
                         Raw(std::uint32_t{GgufBytes::kArray}) + Raw(std::uint64_t{1}) + pad),
              HasSubstr("array of arrays"));
  EXPECT_THAT(RefusedKey(GgufBytes::kArray, Raw(std::uint32_t{GgufBytes::kU64}) +
                                                Raw(std::uint64_t{1}) + Raw(~std::uint64_t{0})),
              HasSubstr("out of range"));
  EXPECT_THAT(Refusal(GgufBytes().Number("twice", 1).Number("twice", 2).Build()),
              HasSubstr("\"twice\" appears twice"));
  EXPECT_THAT(Refusal(GgufBytes().Number("", 1).Build()), HasSubstr("no usable name"));
  EXPECT_THAT(Refusal(GgufBytes().Number(std::string("a\0b\nc", 5), 1).Build()),
              HasSubstr("a\\x00b\\x0ac"));
}

TEST(GgufFileTest, RefusesInsaneAlignments) {
  for (const std::uint32_t alignment : {0U, 1U, 4U, 33U, 1U << 30}) {
    EXPECT_THAT(Refusal(SmallModel().Number("general.alignment", alignment).Build()),
                HasSubstr("general.alignment"))
        << alignment;
  }
  EXPECT_THAT(Refusal(SmallModel().Text("general.alignment", "32").Build()),
              HasSubstr("general.alignment"));
}

std::string RefusedTensor(int type, const std::vector<std::uint64_t>& shape) {
  return Refusal(GgufBytes().Tensor("t", type, shape).Build());
}

TEST(GgufFileTest, RefusesBadTensors) {
  EXPECT_THAT(RefusedTensor(GGML_TYPE_F32, {}), HasSubstr("0 dimensions"));
  EXPECT_THAT(RefusedTensor(GGML_TYPE_F32, {1, 1, 1, 1, 1}), HasSubstr("5 dimensions"));
  EXPECT_THAT(RefusedTensor(GGML_TYPE_F32, {4, 0}), HasSubstr("impossible shape [4, 0]"));
  EXPECT_THAT(RefusedTensor(GGML_TYPE_Q4_0, {48}), HasSubstr("rows of 48"));
  EXPECT_THAT(RefusedTensor(GGML_TYPE_COUNT, {32}), HasSubstr("type 43"));
  EXPECT_THAT(RefusedTensor(-1, {32}), HasSubstr("type 4294967295"));
  for (const int removed : {4, 5, 31, 32, 33, 36, 37, 38}) {
    EXPECT_THAT(RefusedTensor(removed, {256}), HasSubstr("does not know")) << removed;
  }
  const std::string long_name(64, 'n');
  EXPECT_THAT(Refusal(GgufBytes().Tensor(long_name, GGML_TYPE_F32, {1}).Build()),
              HasSubstr("no usable name"));
  EXPECT_TRUE(ParseBytes(GgufBytes().Tensor(long_name.substr(1), GGML_TYPE_F32, {1}).Build()));
  EXPECT_THAT(
      Refusal(GgufBytes().Tensor("t", GGML_TYPE_F32, {1}).Tensor("t", GGML_TYPE_F32, {1}).Build()),
      HasSubstr("t appears twice"));
}

// Sizes that wrap round 64 bits must not look small. Only headers: such files cannot be built.
TEST(GgufFileTest, RefusesShapesThatOverflow) {
  const auto refused = [](int type, const std::vector<std::uint64_t>& shape) {
    return Refusal(GgufBytes().Tensor("t", type, shape).BuildHeader());
  };
  constexpr std::uint64_t kHalf = std::uint64_t{1} << 32;
  EXPECT_THAT(refused(GGML_TYPE_F32, {kHalf, kHalf}), HasSubstr("impossible shape"));
  EXPECT_THAT(refused(GGML_TYPE_F32, {kHalf, kHalf, kHalf, kHalf}), HasSubstr("impossible shape"));
  EXPECT_THAT(refused(GGML_TYPE_F32, {std::uint64_t{1} << 63}), HasSubstr("impossible shape"));
  EXPECT_THAT(refused(GGML_TYPE_F32, {kHuge}), HasSubstr("impossible size"));
  EXPECT_THAT(refused(GGML_TYPE_F32, {std::uint64_t{1} << 60}), HasSubstr("cut off"));
}

TEST(GgufFileTest, RefusesBadOffsets) {
  EXPECT_THAT(Refusal(SmallModel().TensorOffset("b.weight", 65).Build()),
              HasSubstr("no multiple of 32"));
  EXPECT_THAT(Refusal(SmallModel().TensorOffset("b.weight", 32).Build()),
              HasSubstr("a.weight and b.weight overlap"));
  EXPECT_THAT(Refusal(SmallModel().TensorOffset("b.weight", 1 << 20).Build()),
              HasSubstr("cut off: tensor b.weight"));
  EXPECT_THAT(Refusal(SmallModel().TensorOffset("b.weight", ~std::uint64_t{31}).Build()),
              HasSubstr("cut off: tensor b.weight"));
}

TEST(GgufFileTest, HashesTellModelsAndQuantisationsApart) {
  const auto hashes = [](const GgufBytes& bytes) {
    auto file = ParseBytes(bytes.Build());
    EXPECT_TRUE(file);
    return std::pair(file->DirectoryHash(), file->ShapeHash());
  };
  const auto make = [](int type, std::uint64_t rows) {
    return GgufBytes().Tensor("a", type, {64, rows}).Tensor("b", GGML_TYPE_F32, {64});
  };
  const auto f16 = hashes(make(GGML_TYPE_F16, 2));
  const auto q4 = hashes(make(GGML_TYPE_Q4_0, 2));
  const auto other = hashes(make(GGML_TYPE_F16, 3));
  const auto reordered =
      hashes(GgufBytes().Tensor("b", GGML_TYPE_F32, {64}).Tensor("a", GGML_TYPE_F16, {64, 2}));
  EXPECT_EQ(f16, hashes(make(GGML_TYPE_F16, 2).Number("some.key", 1)));
  EXPECT_NE(f16.first, q4.first);
  EXPECT_EQ(f16.second, q4.second);
  EXPECT_NE(f16.first, other.first);
  EXPECT_NE(f16.second, other.second);
  EXPECT_EQ(f16.second, reordered.second);
}

class GgufOpenTest : public ::testing::Test {
 protected:
  void SetUp() override { std::filesystem::create_directories(folder_); }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string Path(const std::string& name) const { return folder_ / name; }
  std::string Write(const std::string& name, const GgufBytes& bytes) const {
    EXPECT_TRUE(base::WriteFileAtomically(Path(name), bytes.Build()));
    return Path(name);
  }
  static std::string Refused(const std::string& path) {
    auto file = GgufFile::Open(path);
    if (file) return "accepted";
    EXPECT_EQ(file.error().kind, base::ErrorKind::kCorruptModel);
    EXPECT_THAT(file.error().message, Not(HasSubstr("\n")));
    return file.error().message;
  }
  static GgufBytes Shard(std::uint16_t number, std::uint16_t count, const std::string& tensor) {
    return GgufBytes()
        .RawKey("split.no", GgufBytes::kU16, Raw(number))
        .RawKey("split.count", GgufBytes::kU16, Raw(count))
        .RawKey("split.tensors.count", GgufBytes::kI32, Raw(std::int32_t{2}))
        .Tensor(tensor, GGML_TYPE_F32, {8}, Raw(static_cast<float>(number)));
  }

  std::filesystem::path folder_ = std::filesystem::path(::testing::TempDir()) /
                                  ::testing::UnitTest::GetInstance()->current_test_info()->name();
};

TEST_F(GgufOpenTest, MapsTheTensorsData) {
  auto file = GgufFile::Open(Write("m.gguf", SmallModel()));
  ASSERT_TRUE(file) << file.error().message;
  const auto data = file->Data(*file->FindTensor("a.weight"));
  ASSERT_EQ(data.size(), 48U);
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(data.data()), 4), Raw(1.5F));
}

TEST_F(GgufOpenTest, RefusesWhatIsNoUsableFile) {
  EXPECT_THAT(Refused(Path("none.gguf")), HasSubstr("none.gguf"));
  EXPECT_THAT(Refused(folder_), HasSubstr("not a regular file"));
  ASSERT_TRUE(base::WriteFileAtomically(Path("empty.gguf"), ""));
  EXPECT_THAT(Refused(Path("empty.gguf")), HasSubstr("empty"));
  const std::string whole = SmallModel().Build();
  ASSERT_TRUE(base::WriteFileAtomically(Path("cut.gguf"), whole.substr(0, whole.size() - 32)));
  EXPECT_THAT(Refused(Path("cut.gguf")), HasSubstr("cut off"));
}

TEST_F(GgufOpenTest, OpensASparseFileOfManyGigabytes) {
  const auto bytes = GgufBytes().Tensor("big", GGML_TYPE_F16, {1 << 20, 50000});
  ASSERT_TRUE(base::WriteFileAtomically(Path("big.gguf"), bytes.BuildHeader()));
  if (::truncate(Path("big.gguf").c_str(), static_cast<off_t>(bytes.file_size())) != 0) {
    GTEST_SKIP() << "this file system has no files of " << bytes.file_size() << " bytes";
  }
  auto file = GgufFile::Open(Path("big.gguf"));
  ASSERT_TRUE(file) << file.error().message;
  EXPECT_EQ(file->FindTensor("big")->bytes, base::Bytes(std::uint64_t{100000} << 20));
  EXPECT_EQ(file->Data(*file->FindTensor("big")).back(), std::byte{0});
}

TEST_F(GgufOpenTest, OpensASplitModelFromItsFirstShard) {
  const std::string first = Write("m-00001-of-00002.gguf", Shard(0, 2, "a"));
  Write("m-00002-of-00002.gguf", Shard(1, 2, "b"));
  auto file = GgufFile::Open(first);
  ASSERT_TRUE(file) << file.error().message;
  ASSERT_EQ(file->tensors().size(), 2U);
  EXPECT_EQ(file->shards().size(), 2U);
  const GgufTensor* b = file->FindTensor("b");
  ASSERT_NE(b, nullptr);
  EXPECT_EQ(b->shard, 1U);
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(file->Data(*b).data()), 4), Raw(1.0F));
}

TEST_F(GgufOpenTest, NamesTheFirstShardWhenGivenALaterOne) {
  const std::string second = Write("m-00002-of-00002.gguf", Shard(1, 2, "b"));
  const std::string message = Refused(second);
  EXPECT_THAT(message, HasSubstr("shard 2 of 2"));
  EXPECT_THAT(message, HasSubstr("m-00001-of-00002.gguf"));
}

TEST_F(GgufOpenTest, RefusesShardsThatAreMissingOrOfAnotherModel) {
  const std::string first = Write("m-00001-of-00002.gguf", Shard(0, 2, "a"));
  EXPECT_THAT(Refused(first), HasSubstr("m-00002-of-00002.gguf"));
  Write("m-00002-of-00002.gguf", Shard(1, 3, "b"));
  EXPECT_THAT(Refused(first), HasSubstr("shard 2 of 3"));
  Write("m-00002-of-00002.gguf", Shard(1, 2, "a"));
  EXPECT_THAT(Refused(first), HasSubstr("tensor a appears in two shards"));
  Write("m-00002-of-00002.gguf", Shard(1, 2, "b").Tensor("c", GGML_TYPE_F32, {1}));
  EXPECT_THAT(Refused(first), HasSubstr("hold 3 tensors"));
  EXPECT_THAT(Refused(Write("renamed.gguf", Shard(0, 2, "a"))), HasSubstr("-00001-of-00002.gguf"));
  EXPECT_THAT(Refused(Write("m-00001-of-00002.gguf", Shard(5, 2, "a"))),
              HasSubstr("split.no is 5"));
  EXPECT_THAT(Refusal(Shard(0, 2, "a").Build()), HasSubstr("one of 2 shards"));
}

}  // namespace
}  // namespace gg
