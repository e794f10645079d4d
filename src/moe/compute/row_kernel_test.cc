#include "moe/compute/row_kernel.h"

#include <ggml.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "gg/devices.h"

namespace moe {
namespace {

class RowKernelOfType : public testing::TestWithParam<int> {
 protected:
  static constexpr std::size_t kWidth = 768;
  static constexpr std::size_t kRows = 5;
  static constexpr std::size_t kVectors = 15;  // eight, four, two and one at a time

  void SetUp() override {
    static_cast<void>(gg::DiscoverDevices());
    const auto traits = gg::CpuTraits::Loaded();
    ASSERT_TRUE(traits) << traits.error().message;
    traits_ = *traits->Of(GetParam());
    auto kernel = RowKernel::Make(*traits, GetParam(), kWidth, "rows");
    ASSERT_TRUE(kernel) << kernel.error().message;
    kernel_.emplace(*kernel);
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    std::vector<float> values(kRows * kWidth);
    for (float& value : values) value = normal(random);
    const auto type = static_cast<ggml_type>(GetParam());
    row_bytes_ = ggml_row_size(type, kWidth);
    rows_.resize(kRows * row_bytes_);
    ggml_quantize_chunk(type, values.data(), rows_.data(), 0, kRows, kWidth, nullptr);
    for (std::size_t v = 0; v < kVectors; ++v) {
      std::vector<float> in(kWidth);
      for (float& value : in) value = normal(random);
      kernel_->Convert(in.data(), vectors_.emplace_back(kernel_->vector_bytes()).data(), kWidth);
    }
    for (const auto& vector : vectors_) pointers_.push_back(vector.data());
  }

  gg::CpuTypeTraits traits_;
  std::optional<RowKernel> kernel_;
  std::size_t row_bytes_ = 0;
  std::vector<std::byte> rows_;
  std::vector<std::vector<std::byte>> vectors_;
  std::vector<const std::byte*> pointers_;
};

TEST_P(RowKernelOfType, AgreesWithTheBackendsDotProduct) {
  std::vector<float> out(kVectors * kRows);
  kernel_->Multiply(rows_.data(), kRows, pointers_.data(), kVectors, out.data(), kRows);
  for (std::size_t v = 0; v < kVectors; ++v) {
    for (std::size_t r = 0; r < kRows; ++r) {
      float expected = 0;
      traits_.vec_dot(kWidth, &expected, 0, rows_.data() + r * row_bytes_, 0, pointers_[v], 0, 1);
      // Both sum the same integers; the floats of three blocks differ in their order alone.
      EXPECT_NEAR(out[v * kRows + r], expected, 1e-4f) << "row " << r << ", vector " << v;
      EXPECT_GT(std::abs(expected), 1e-3f);
    }
  }
}

TEST_P(RowKernelOfType, AnOutputDoesNotDependOnItsCompany) {
  std::vector<float> together(kVectors * kRows);
  kernel_->Multiply(rows_.data(), kRows, pointers_.data(), kVectors, together.data(), kRows);
  for (std::size_t count = 1; count <= kVectors; ++count) {
    std::vector<float> some(count * 8, NAN);
    const std::size_t first = kVectors - count;
    kernel_->Multiply(rows_.data() + row_bytes_, kRows - 1, pointers_.data() + first, count,
                      some.data(), 8);
    for (std::size_t v = 0; v < count; ++v) {
      for (std::size_t r = 1; r < kRows; ++r) {
        ASSERT_EQ(std::bit_cast<std::uint32_t>(some[v * 8 + r - 1]),
                  std::bit_cast<std::uint32_t>(together[(first + v) * kRows + r]))
            << count << " vectors, row " << r << ", vector " << v;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, RowKernelOfType,
                         testing::Values(GGML_TYPE_Q4_K, GGML_TYPE_Q5_K, GGML_TYPE_Q6_K,
                                         GGML_TYPE_Q3_K, GGML_TYPE_Q8_0, GGML_TYPE_BF16),
                         [](const auto& of) {
                           return std::string(ggml_type_name(static_cast<ggml_type>(of.param)));
                         });

}  // namespace
}  // namespace moe
