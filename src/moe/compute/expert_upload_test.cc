#include "moe/compute/expert_upload.h"

#include <ggml-backend.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <vector>

#include "gg/handles.h"

namespace moe {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Gt;
using ::testing::Le;

constexpr std::size_t kWidth = 1024;
constexpr std::size_t kRows = 1024;
constexpr std::size_t kExpertFloats = kWidth * kRows;
constexpr std::size_t kExpertBytes = 4 * kExpertFloats;  // 4 MiB
constexpr std::size_t kNumExperts = 24;

class ExpertUploadTest : public ::testing::Test {
 protected:
  ExpertUploadTest() : values_(kNumExperts * kExpertFloats) {
    std::iota(values_.begin(), values_.end(), 0.0F);
  }

  ExpertMatrix Matrix() const {
    return {.type = GGML_TYPE_F32,
            .row_width = kWidth,
            .num_rows = kRows,
            .row_bytes = 4 * kWidth,
            .expert_bytes = kExpertBytes,
            .data = reinterpret_cast<const std::byte*>(values_.data())};
  }

  // Uploads and compares; the sizes of the pieces, in MiB.
  std::vector<std::size_t> PiecesOf(const std::vector<std::size_t>& ids, UploadForm form) {
    std::vector<ExpertId> experts;
    for (const std::size_t id : ids) experts.emplace_back(id);
    auto context = gg::Context::Make(1);
    EXPECT_TRUE(context);
    ggml_tensor* stack = ggml_new_tensor_3d(context->get(), GGML_TYPE_F32, kWidth, kRows,
                                            static_cast<std::int64_t>(experts.size()));
    auto buffer = gg::Buffer::ForContext(*context, ggml_backend_cpu_buffer_type());
    EXPECT_TRUE(buffer);
    std::vector<std::size_t> pieces;
    std::size_t sum = 0;
    UploadExperts(Matrix(), experts, stack, form, [&](base::Bytes piece) {
      pieces.push_back(piece.count() >> 20);
      sum += piece.count();
    });
    EXPECT_EQ(sum, experts.size() * kExpertBytes);
    const auto* uploaded = static_cast<const std::byte*>(stack->data);
    for (std::size_t i = 0; i < experts.size(); ++i) {
      EXPECT_EQ(std::memcmp(uploaded + i * kExpertBytes, Matrix().expert(experts[i]), kExpertBytes),
                0)
          << "expert " << i;
    }
    return pieces;
  }

  std::vector<float> values_;
};

TEST_F(ExpertUploadTest, ExpertsThatFollowEachOtherGoTogether) {
  EXPECT_THAT(PiecesOf({0, 1, 2, 7, 9, 10}, UploadForm::kRuns), ElementsAre(12, 4, 8));
}

TEST_F(ExpertUploadTest, SmallPiecesAreBelowWhatTheServersCacheTakes) {
  EXPECT_THAT(PiecesOf({0, 1, 2, 7, 9, 10}, UploadForm::kSmall), ElementsAre(10, 2, 4, 8));
}

TEST_F(ExpertUploadTest, LargePiecesAreWhatTheCacheTakesHoweverTheExpertsLie) {
  EXPECT_THAT(PiecesOf({0, 3, 5}, UploadForm::kLarge), ElementsAre(12));
  std::vector<std::size_t> all;
  for (std::size_t e = kNumExperts; e-- > 0;) all.push_back(e);
  const std::vector<std::size_t> pieces = PiecesOf(all, UploadForm::kLarge);
  EXPECT_EQ(pieces.size(), 2U);
  EXPECT_THAT(pieces, Each(Le(64U)));
  EXPECT_THAT(pieces, Each(Gt(10U)));
}

TEST_F(ExpertUploadTest, NobodyNeedsToBeTold) {
  const std::vector<ExpertId> experts = {ExpertId(4)};
  auto context = gg::Context::Make(1);
  ASSERT_TRUE(context);
  ggml_tensor* stack = ggml_new_tensor_3d(context->get(), GGML_TYPE_F32, kWidth, kRows, 1);
  auto buffer = gg::Buffer::ForContext(*context, ggml_backend_cpu_buffer_type());
  ASSERT_TRUE(buffer);
  UploadExperts(Matrix(), experts, stack, UploadForm::kRuns, {});
  EXPECT_EQ(std::memcmp(stack->data, Matrix().expert(ExpertId(4)), kExpertBytes), 0);
}

}  // namespace
}  // namespace moe
