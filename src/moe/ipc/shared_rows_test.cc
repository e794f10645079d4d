#include "moe/ipc/shared_rows.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <thread>

namespace moe::ipc {
namespace {

using ::testing::HasSubstr;

constexpr RowsShape kShape{.max_rows = 3, .num_used = 2, .n_embd = 5, .form = ResultForm::kPairs};

base::UniqueFd Copy(int fd) { return base::UniqueFd(::fcntl(fd, F_DUPFD_CLOEXEC, 0)); }

TEST(SharedRowsTest, ArraysDoNotOverlapAndEndWithTheFile) {
  for (const ResultForm form : {ResultForm::kPairs, ResultForm::kSums}) {
    RowsShape shape = kShape;
    shape.form = form;
    auto shared = SharedRows::Create(shape);
    ASSERT_TRUE(shared) << shared.error().message;
    const auto end = [](auto* array, std::size_t count) {
      return reinterpret_cast<std::uintptr_t>(array + count);
    };
    const auto begin = [&](auto* array) { return end(array, 0); };
    EXPECT_GE(begin(shared->ids()), end(shared->rows(), 15));
    EXPECT_GE(begin(shared->weights()), end(shared->ids(), 6));
    EXPECT_GE(begin(shared->results()), end(shared->weights(), 6));
    const std::size_t vectors = form == ResultForm::kPairs ? 6 : 3;
    const std::uintptr_t start = begin(shared->rows()) - 128;
    EXPECT_EQ(end(shared->results(), vectors * 5) - start, SharedRows::Size(shape).count());
    for (float* array : {shared->rows(), shared->weights(), shared->results()}) {
      EXPECT_EQ(begin(array) % 64, 0U);
    }
  }
}

TEST(SharedRowsTest, BothSidesSeeTheSameMemory) {
  auto owner = SharedRows::Create(kShape);
  ASSERT_TRUE(owner);
  auto worker = SharedRows::Map(Copy(owner->descriptor()), kShape);
  ASSERT_TRUE(worker) << worker.error().message;
  owner->rows()[14] = 1.5f;
  worker->results()[29] = 2.5f;
  EXPECT_EQ(worker->rows()[14], 1.5f);
  EXPECT_EQ(owner->results()[29], 2.5f);
  EXPECT_FALSE(worker->SeesRequest(1));
  owner->PublishRequest(1);
  EXPECT_TRUE(worker->SeesRequest(1));
  worker->PublishReply(1);
  EXPECT_TRUE(owner->SeesReply(1));
}

TEST(SharedRowsTest, TheFileCannotChangeItsSize) {
  auto shared = SharedRows::Create(kShape);
  ASSERT_TRUE(shared);
  EXPECT_NE(::ftruncate(shared->descriptor(), 0), 0);
  EXPECT_NE(::ftruncate(shared->descriptor(), 1 << 20), 0);
  EXPECT_NE(::fcntl(shared->descriptor(), F_ADD_SEALS, F_SEAL_WRITE), 0);
}

TEST(SharedRowsTest, AFileOfAnotherSizeOrWithoutSealsIsRefused) {
  auto shared = SharedRows::Create(kShape);
  ASSERT_TRUE(shared);
  RowsShape larger = kShape;
  larger.max_rows = 4;
  auto wrong_size = SharedRows::Map(Copy(shared->descriptor()), larger);
  ASSERT_FALSE(wrong_size);
  EXPECT_EQ(wrong_size.error().kind, base::ErrorKind::kWorkerLost);
  EXPECT_THAT(wrong_size.error().message, HasSubstr("bytes instead of"));

  base::UniqueFd open_file(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(::ftruncate(open_file.get(), static_cast<off_t>(SharedRows::Size(kShape).count())), 0);
  auto unsealed = SharedRows::Map(std::move(open_file), kShape);
  ASSERT_FALSE(unsealed);
  EXPECT_THAT(unsealed.error().message, HasSubstr("not sealed"));

  auto nothing = SharedRows::Map(base::UniqueFd(), kShape);
  ASSERT_FALSE(nothing);
  EXPECT_THAT(nothing.error().message, HasSubstr("passed no shared memory"));
}

// Two threads that nothing but the two words orders: ThreadSanitizer reports a race here when one
// of them is stored or loaded with a weaker order.
TEST(SharedRowsTest, TheWordsOrderWhatIsWrittenBesideThem) {
  auto shared = SharedRows::Create(kShape);
  ASSERT_TRUE(shared);
  constexpr std::uint64_t kBatches = 2000;
  std::jthread worker([&] {
    for (std::uint64_t n = 1; n <= kBatches; ++n) {
      while (!shared->SeesRequest(n)) std::this_thread::yield();
      for (std::size_t i = 0; i < 15; ++i) shared->results()[i] = shared->rows()[i] + 1;
      shared->PublishReply(n);
    }
  });
  for (std::uint64_t n = 1; n <= kBatches; ++n) {
    for (std::size_t i = 0; i < 15; ++i) shared->rows()[i] = static_cast<float>(n + i);
    shared->PublishRequest(n);
    while (!shared->SeesReply(n)) std::this_thread::yield();
    for (std::size_t i = 0; i < 15; ++i) {
      ASSERT_EQ(shared->results()[i], static_cast<float>(n + i + 1)) << "batch " << n;
    }
  }
}

}  // namespace
}  // namespace moe::ipc
