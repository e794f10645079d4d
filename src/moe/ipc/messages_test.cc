#include "moe/ipc/messages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace moe::ipc {
namespace {

using ::testing::HasSubstr;

ModelIdentity Model() {
  return {.architecture = "examplemoe",
          .name = "Demo",
          .quantisation = "Q8_0",
          .num_layers = 3,
          .num_experts = 5,
          .directory_hash = 0x0123456789abcdef,
          .shape_hash = 0xfedcba9876543210};
}

Welcome AWelcome() {
  return {.model = Model(),
          .target = "vulkan:0",
          .form = ResultForm::kSums,
          .memory_free = base::Bytes::GiB(3),
          .memory_total = base::Bytes::GiB(4),
          .device_id = "0000:01:00.0",
          .shares_host_ram = true};
}

LoadOrder AnOrder() {
  return {.model = Model(),
          .plan_fingerprint = 42,
          .packed = true,
          .num_threads = 4,
          .rows = {.max_rows = 512, .num_used = 2, .n_embd = 2048, .form = ResultForm::kPairs},
          .owned = {1, 0, 0, 1, 1, 0, 0, 0, 1, 0, 1, 1, 1, 0, 1}};
}

// Reads back what is written; every shorter and every longer payload is refused.
template <class T>
void ExpectExact(const T& message, base::Result<T> (*decode)(std::span<const std::byte>)) {
  std::vector<std::byte> bytes = Encode(message);
  auto read = decode(bytes);
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(*read, message);
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    auto cut = decode(std::span(bytes).first(length));
    ASSERT_FALSE(cut) << length;
    EXPECT_EQ(cut.error().kind, base::ErrorKind::kWorkerLost);
    EXPECT_THAT(cut.error().message, HasSubstr("ends inside"));
  }
  bytes.push_back(std::byte{0});
  auto longer = decode(bytes);
  ASSERT_FALSE(longer);
  EXPECT_THAT(longer.error().message, HasSubstr("1 bytes are left over"));
}

TEST(MessagesTest, EveryMessageReadsBackExactly) {
  ExpectExact(AWelcome(), DecodeWelcome);
  ExpectExact(AnOrder(), DecodeLoadOrder);
  ExpectExact(LoadProgress{.done = base::Bytes(7), .total = base::Bytes::Max()},
              DecodeLoadProgress);
  ExpectExact(Ready{.plan_fingerprint = 9, .bytes = base::Bytes(11)}, DecodeReady);
  ExpectExact(BatchOrder{.number = 1, .layer = 2, .num_rows = 0}, DecodeBatchOrder);
  ExpectExact(BatchDone{.number = 1, .num_pairs = 6}, DecodeBatchDone);
}

TEST(MessagesTest, AFailureKeepsItsKindAndAPrintableText) {
  auto read = DecodeFailure(Encode(base::Error{base::ErrorKind::kCapacity, "no room\n\xff"}));
  ASSERT_TRUE(read);
  EXPECT_EQ(read->kind, base::ErrorKind::kCapacity);
  EXPECT_EQ(read->message, "no room\\x0a\\xff");
  auto longest = DecodeFailure(
      Encode(base::Error{base::ErrorKind::kInternal, std::string(2 * kMaxTextBytes, 'a')}));
  ASSERT_TRUE(longest);
  EXPECT_EQ(longest->message.size(), kMaxTextBytes);
}

TEST(MessagesTest, ValuesOutOfRangeAreNamed) {
  LoadOrder order = AnOrder();
  order.rows.n_embd = 0;
  EXPECT_EQ(DecodeLoadOrder(Encode(order)).error().message,
            "a load message: n_embd is 0, not 1 to 1048576");
  order = AnOrder();
  order.num_threads = 100000;
  EXPECT_THAT(DecodeLoadOrder(Encode(order)).error().message, HasSubstr("num_threads is 100000"));
  order = AnOrder();
  order.model.num_experts = 0;
  EXPECT_THAT(DecodeLoadOrder(Encode(order)).error().message, HasSubstr("num_experts is 0"));
  order = AnOrder();
  std::vector<std::byte> bytes = Encode(order);
  bytes.back() |= std::byte{0x80};
  EXPECT_THAT(DecodeLoadOrder(bytes).error().message, HasSubstr("bits beyond the last unit"));
  EXPECT_THAT(DecodeBatchOrder(Encode(BatchOrder{.number = 0})).error().message,
              HasSubstr("number is 0"));
  std::vector<std::byte> failure = Encode(base::Error{});
  failure.front() = std::byte{200};
  EXPECT_THAT(DecodeFailure(failure).error().message, HasSubstr("kind is 200"));
}

TEST(MessagesTest, AnOrderOfMoreUnitsThanItHasBitsForIsRefused) {
  LoadOrder order = AnOrder();
  order.model.num_layers = 65536;
  order.model.num_experts = 65536;
  EXPECT_THAT(DecodeLoadOrder(Encode(order)).error().message, HasSubstr("ends inside owned"));
}

}  // namespace
}  // namespace moe::ipc
