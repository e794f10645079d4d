#include "kernels/matrix_kernel.h"

#include <ggml-backend.h>
#include <ggml-cpp.h>
#include <ggml.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace kernels {
namespace {

constexpr int kTypes[] = {GGML_TYPE_Q2_K,  GGML_TYPE_Q3_K,   GGML_TYPE_Q4_K,    GGML_TYPE_Q5_K,
                          GGML_TYPE_Q6_K,  GGML_TYPE_IQ4_XS, GGML_TYPE_IQ3_S,   GGML_TYPE_IQ3_XXS,
                          GGML_TYPE_IQ2_S, GGML_TYPE_IQ2_XS, GGML_TYPE_IQ2_XXS, GGML_TYPE_IQ1_S,
                          GGML_TYPE_IQ1_M, GGML_TYPE_TQ1_0,  GGML_TYPE_TQ2_0,   GGML_TYPE_Q8_0,
                          GGML_TYPE_Q5_1,  GGML_TYPE_Q5_0,   GGML_TYPE_Q4_1,    GGML_TYPE_Q4_0,
                          GGML_TYPE_Q2_0,  GGML_TYPE_Q1_0,   GGML_TYPE_IQ4_NL,  GGML_TYPE_MXFP4,
                          GGML_TYPE_NVFP4, GGML_TYPE_F32,    GGML_TYPE_F16,     GGML_TYPE_BF16};

bool IsFloat(int type) {
  return type == GGML_TYPE_F32 || type == GGML_TYPE_F16 || type == GGML_TYPE_BF16;
}

const ggml_type_traits* TraitsOf(int type) {
  return ggml_get_type_traits(static_cast<ggml_type>(type));
}

struct AlignedDelete {
  void operator()(std::byte* p) const { std::free(p); }
};
using AlignedBytes = std::unique_ptr<std::byte[], AlignedDelete>;

AlignedBytes Allocate(std::size_t bytes) {
  const std::size_t size = (bytes / kAlignment + 1) * kAlignment;
  auto* p = static_cast<std::byte*>(std::aligned_alloc(kAlignment, size));
  std::memset(p, 0xee, size);
  return AlignedBytes(p);
}

// ggml's encoders of these types take seconds to prepare.
bool IsSlowToEncode(int type) {
  return type == GGML_TYPE_IQ2_XXS || type == GGML_TYPE_IQ2_XS || type == GGML_TYPE_IQ2_S ||
         type == GGML_TYPE_IQ3_XXS || type == GGML_TYPE_IQ3_S || type == GGML_TYPE_IQ1_S ||
         type == GGML_TYPE_IQ1_M;
}

// A random matrix of a type: two rows encoded by ggml, others of random codes with their scales.
struct Matrix {
  Matrix(int matrix_type, std::size_t rows, std::size_t width, std::uint32_t seed = 1)
      : type(matrix_type), num_rows(rows), row_width(width) {
    constexpr std::size_t kEncoded = 2;
    std::mt19937 random(seed);
    const auto ggml = static_cast<ggml_type>(type);
    row_bytes = ggml_row_size(ggml, static_cast<std::int64_t>(width));
    encoded.resize(std::max(rows, kEncoded) * row_bytes);
    if (IsSlowToEncode(type)) {
      for (std::size_t i = 0; i < encoded.size(); i += TraitsOf(type)->type_size) {
        const auto scale = static_cast<std::uint16_t>(0x2000 + random() % 0x400);  // about 0.01
        std::memcpy(encoded.data() + i, &scale, sizeof scale);
      }
      Overwrite(0, [&] { return static_cast<std::byte>(random()); });
      return;
    }
    std::normal_distribution<float> normal;
    std::vector<float> values(kEncoded * width);
    for (float& value : values) value = normal(random);
    ggml_quantize_chunk(ggml, values.data(), encoded.data(), 0, kEncoded,
                        static_cast<std::int64_t>(width), nullptr);
    for (std::size_t row = kEncoded; row < rows; ++row) {
      std::memcpy(encoded.data() + row * row_bytes, encoded.data() + row % kEncoded * row_bytes,
                  row_bytes);
    }
    Overwrite(kEncoded, [&] { return static_cast<std::byte>(random()); });
  }

  // Replaces all bytes of rows from `first_row` on, but their blocks' float scales, by those that
  // `next` gives: any are valid. Floats stay.
  template <class Next>
  void Overwrite(std::size_t first_row, Next next) {
    if (IsFloat(type)) return;
    const std::size_t block_bytes = TraitsOf(type)->type_size;
    const auto [first, scale_bytes] = FloatScales();
    for (std::size_t i = first_row * row_bytes; i < encoded.size(); ++i) {
      const std::size_t place = i % block_bytes;
      if (place < first || place >= first + scale_bytes) encoded[i] = next();
      // The upper half of every second byte of IQ1_M's scales is a part of its float scale.
      constexpr std::size_t kIq1MScales = 48;
      constexpr std::byte kScale[] = {std::byte{0x00}, std::byte{0x50}, std::byte{0x10},
                                      std::byte{0x20}};  // 0x2150: about 0.01
      if (type == GGML_TYPE_IQ1_M && place > kIq1MScales && place % 2 == 1) {
        encoded[i] = (encoded[i] & std::byte{0x0f}) | kScale[(place - kIq1MScales) / 2];
      }
    }
  }

  // Where float scales and mins are in a block of the file.
  std::pair<std::size_t, std::size_t> FloatScales() const {
    const std::size_t block_bytes = TraitsOf(type)->type_size;
    switch (type) {
      case GGML_TYPE_Q2_K:
        return {block_bytes - 4, 4};
      case GGML_TYPE_Q3_K:
      case GGML_TYPE_Q6_K:
      case GGML_TYPE_TQ1_0:
      case GGML_TYPE_TQ2_0:
        return {block_bytes - 2, 2};
      case GGML_TYPE_Q4_K:
      case GGML_TYPE_Q5_K:
      case GGML_TYPE_Q4_1:
      case GGML_TYPE_Q5_1:
      case GGML_TYPE_NVFP4:
        return {0, 4};
      case GGML_TYPE_MXFP4:
        return {0, 1};
      case GGML_TYPE_IQ1_M:
        return {0, 0};
      default:
        return {0, 2};
    }
  }

  std::vector<float> Row(std::size_t row) const {
    std::vector<float> values(row_width);
    const std::byte* from = encoded.data() + row * row_bytes;
    if (type == GGML_TYPE_F32) {
      std::memcpy(values.data(), from, row_bytes);
    } else {
      TraitsOf(type)->to_float(from, values.data(), static_cast<std::int64_t>(row_width));
    }
    return values;
  }

  int type;
  std::size_t num_rows, row_width, row_bytes = 0;
  std::vector<std::byte> encoded;
};

std::vector<std::vector<float>> RandomRows(std::size_t num_rows, std::size_t width,
                                           std::uint32_t seed = 2) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<std::vector<float>> rows(num_rows, std::vector<float>(width));
  for (auto& row : rows) {
    for (float& value : row) value = normal(random);
    row[random() % width] *= 6;  // as activations have them
  }
  return rows;
}

// Integers up to 127, of which each block has one of 127: they are quantised exactly.
std::vector<std::vector<float>> IntegerRows(std::size_t num_rows, std::size_t width) {
  std::mt19937 random(3);
  std::vector<std::vector<float>> rows(num_rows, std::vector<float>(width));
  for (auto& row : rows) {
    for (float& value : row) value = static_cast<float>(static_cast<int>(random() % 255) - 127);
    for (std::size_t i = 0; i < width; i += 32) row[i] = i % 64 == 0 ? 127.0f : -127.0f;
  }
  return rows;
}

// A packed matrix.
struct Packed {
  Packed(const Matrix& matrix, InstructionSet set)
      : kernel(*MatrixKernel::Make(matrix.type, matrix.row_width, set)),
        num_rows(matrix.num_rows),
        bytes(Allocate(kernel.PackedBytes(num_rows))) {
    kernel.Pack(matrix.encoded.data(), num_rows, 0, MatrixKernel::NumStrips(num_rows), bytes.get());
  }

  // [rows, num_rows]; strips in parts of `strips_a_call`.
  std::vector<float> Multiply(const std::vector<std::vector<float>>& rows,
                              std::size_t strips_a_call = 1000) const {
    const AlignedBytes panels = BuildPanels(rows);
    std::vector<float> out(rows.size() * num_rows, -1.0f);
    const std::size_t num_strips = MatrixKernel::NumStrips(num_rows);
    for (std::size_t first = 0; first < num_strips; first += strips_a_call) {
      kernel.Multiply(bytes.get(), num_rows, first, std::min(num_strips, first + strips_a_call),
                      panels.get(), rows.size(), out.data(), num_rows);
    }
    return out;
  }

  // From the file's layout.
  std::vector<float> MultiplyFile(const Matrix& matrix,
                                  const std::vector<std::vector<float>>& rows) const {
    const AlignedBytes panels = BuildPanels(rows);
    std::vector<float> out(rows.size() * num_rows, -1.0f);
    kernel.MultiplyFile(matrix.encoded.data(), num_rows, 0, MatrixKernel::NumStrips(num_rows),
                        panels.get(), rows.size(), out.data(), num_rows);
    return out;
  }

  AlignedBytes BuildPanels(const std::vector<std::vector<float>>& rows) const {
    std::vector<AlignedBytes> quantized;
    std::vector<const std::byte*> pointers;
    for (const auto& row : rows) {
      quantized.push_back(Allocate(kernel.quantized_bytes()));
      kernel.QuantizeRow(row.data(), quantized.back().get());
      pointers.push_back(quantized.back().get());
    }
    AlignedBytes panels = Allocate(kernel.PanelBytes(rows.size()));
    kernel.BuildPanels(pointers.data(), rows.size(), panels.get());
    return panels;
  }

  MatrixKernel kernel;
  std::size_t num_rows;
  AlignedBytes bytes;
};

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

double Nmse(const std::vector<float>& values, const std::vector<double>& reference) {
  double error = 0, total = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    error += (values[i] - reference[i]) * (values[i] - reference[i]);
    total += reference[i] * reference[i];
  }
  return error / total;
}

class MatrixKernelTest : public testing::TestWithParam<std::tuple<int, InstructionSet>> {
 protected:
  static void SetUpTestSuite() { ggml_backend_load_all(); }

  int type() const { return std::get<0>(GetParam()); }
  InstructionSet set() const { return std::get<1>(GetParam()); }
  std::size_t block() const { return static_cast<std::size_t>(TraitsOf(type())->blck_size); }
};

std::vector<double> ReferenceOf(const Matrix& matrix, const std::vector<std::vector<float>>& rows) {
  std::vector<double> out;
  std::vector<std::vector<float>> weights;
  for (std::size_t r = 0; r < matrix.num_rows; ++r) weights.push_back(matrix.Row(r));
  for (const auto& row : rows) {
    for (const auto& weight : weights) {
      double sum = 0;
      for (std::size_t i = 0; i < row.size(); ++i) sum += double{weight[i]} * double{row[i]};
      out.push_back(sum);
    }
  }
  return out;
}

// What ggml's mul_mat on the CPU gives.
std::vector<float> GgmlOf(const Matrix& matrix, const std::vector<std::vector<float>>& rows) {
  const ggml_backend_ptr backend(ggml_backend_init_by_type(GGML_BACKEND_DEVICE_TYPE_CPU, nullptr));
  const ggml_context_ptr context(
      ggml_init({.mem_size = 1 << 20, .mem_buffer = nullptr, .no_alloc = true}));
  const auto width = static_cast<std::int64_t>(matrix.row_width);
  ggml_tensor* weights = ggml_new_tensor_2d(context.get(), static_cast<ggml_type>(matrix.type),
                                            width, static_cast<std::int64_t>(matrix.num_rows));
  ggml_tensor* x = ggml_new_tensor_2d(context.get(), GGML_TYPE_F32, width,
                                      static_cast<std::int64_t>(rows.size()));
  ggml_tensor* product = ggml_mul_mat(context.get(), weights, x);
  ggml_cgraph* graph = ggml_new_graph(context.get());
  ggml_build_forward_expand(graph, product);
  const ggml_backend_buffer_ptr buffer(
      ggml_backend_alloc_ctx_tensors(context.get(), backend.get()));
  ggml_backend_tensor_set(weights, matrix.encoded.data(), 0, ggml_nbytes(weights));
  for (std::size_t i = 0; i < rows.size(); ++i) {
    ggml_backend_tensor_set(x, rows[i].data(), i * x->nb[1], x->nb[1]);
  }
  EXPECT_EQ(ggml_backend_graph_compute(backend.get(), graph), GGML_STATUS_SUCCESS);
  std::vector<float> out(rows.size() * matrix.num_rows);
  ggml_backend_tensor_get(product, out.data(), 0, out.size() * sizeof(float));
  return out;
}

TEST_P(MatrixKernelTest, IsAsExactAsGgml) {
  const Matrix matrix(type(), 96, 1024);
  const auto rows = RandomRows(9, matrix.row_width);
  const std::vector<double> reference = ReferenceOf(matrix, rows);
  const double ours = Nmse(Packed(matrix, set()).Multiply(rows), reference);
  const double theirs = Nmse(GgmlOf(matrix, rows), reference);
  // ggml multiplies floats with the machine's best instructions, fused: one rounding less.
  const bool fused = !IsFloat(type()) || set() != InstructionSet::kBaseline;
  EXPECT_LT(ours, (fused ? 1.2 : 2.0) * theirs);
  EXPECT_LT(ours, 2e-4);
  // int8 activations cannot be better.
  EXPECT_GT(ours, IsFloat(type()) ? 0 : 1e-6);
}

TEST_P(MatrixKernelTest, EveryCodeOfTheTypeIsMultipliedExactly) {
  Matrix matrix(type(), 33, 1024);
  std::mt19937 random(5);
  matrix.Overwrite(0, [&] { return static_cast<std::byte>(random()); });
  const auto rows = IntegerRows(2, matrix.row_width);
  EXPECT_LT(Nmse(Packed(matrix, set()).Multiply(rows), ReferenceOf(matrix, rows)), 1e-11);
}

TEST_P(MatrixKernelTest, TheLargestProductsDoNotOverflow) {
  std::vector<std::vector<float>> rows(3, std::vector<float>(512, 127.0f));
  rows[1].assign(512, -127.0f);
  for (std::size_t i = 0; i < 512; i += 2) rows[2][i] = -127.0f;
  for (const int byte : {0x00, 0x0f, 0x77, 0x7f, 0x80, 0x88, 0xf0, 0xff}) {
    Matrix matrix(type(), 16, 512);
    matrix.Overwrite(0, [&] { return static_cast<std::byte>(byte); });
    const auto out = Packed(matrix, set()).Multiply(rows);
    const auto reference = ReferenceOf(matrix, rows);
    double largest = 0;
    for (const double value : reference) largest = std::max(largest, std::abs(value));
    for (std::size_t i = 0; i < out.size(); ++i) {
      EXPECT_NEAR(out[i], reference[i], 1e-5 * largest) << byte << " output " << i;
    }
  }
}

TEST_P(MatrixKernelTest, ARowsBitsDoNotDependOnTheBatch) {
  const Matrix matrix(type(), 50, 512);
  const Packed packed(matrix, set());
  const auto rows = RandomRows(40, matrix.row_width);
  std::vector<float> alone;
  for (const auto& row : rows) {
    const auto out = packed.Multiply({row});
    alone.insert(alone.end(), out.begin(), out.end());
  }
  for (std::size_t n = 1; n <= rows.size(); n += n < 14 ? 1 : 13) {
    const std::vector<std::vector<float>> some(rows.begin(),
                                               rows.begin() + static_cast<std::ptrdiff_t>(n));
    const std::vector<float> expected(
        alone.begin(), alone.begin() + static_cast<std::ptrdiff_t>(n * matrix.num_rows));
    EXPECT_TRUE(SameBits(packed.Multiply(some), expected)) << n << " rows";
  }
}

TEST_P(MatrixKernelTest, BitsDoNotDependOnHowStripsAreSplit) {
  const Matrix matrix(type(), 100, 512);
  const Packed packed(matrix, set());
  const auto rows = RandomRows(14, matrix.row_width);
  const auto whole = packed.Multiply(rows);
  for (const std::size_t strips : {1, 2, 3, 5}) {
    EXPECT_TRUE(SameBits(packed.Multiply(rows, strips), whole)) << strips << " strips a call";
  }
}

TEST_P(MatrixKernelTest, TheFilesLayoutGivesTheSameBits) {
  for (const std::size_t num_rows : {1, 16, 50}) {
    const Matrix matrix(type(), num_rows, 512 + block());
    const Packed packed(matrix, set());
    for (const std::size_t n : {1, 5, 13, 250}) {
      const auto rows = RandomRows(n, matrix.row_width);
      EXPECT_TRUE(SameBits(packed.MultiplyFile(matrix, rows), packed.Multiply(rows)))
          << num_rows << " rows, " << n << " activations";
    }
  }
}

TEST_P(MatrixKernelTest, MatricesOfAnySizeAreMultiplied) {
  for (const std::size_t num_rows : {0, 1, 15, 16, 17, 31}) {
    for (const std::size_t blocks : {1, 2, 7, 8, 9, 11}) {
      const Matrix matrix(type(), num_rows, blocks * block());
      const Packed packed(matrix, set());
      for (const std::size_t n : {0, 1, 3}) {
        const auto rows = IntegerRows(n, matrix.row_width);
        const auto out = packed.Multiply(rows);
        ASSERT_EQ(out.size(), n * num_rows);
        if (out.empty()) continue;
        // A single output may be a small difference of large sums.
        EXPECT_LT(Nmse(out, ReferenceOf(matrix, rows)), 1e-7) << num_rows << "x" << blocks;
      }
    }
  }
}

TEST_P(MatrixKernelTest, OutputsOfOtherStripsAreLeftAlone) {
  const Matrix matrix(type(), 40, 256);
  const Packed packed(matrix, set());
  const auto rows = RandomRows(1, matrix.row_width);
  const AlignedBytes vector = Allocate(packed.kernel.quantized_bytes());
  packed.kernel.QuantizeRow(rows[0].data(), vector.get());
  std::vector<float> out(48, -7.0f);
  packed.kernel.Multiply(packed.bytes.get(), 40, 2, 3, vector.get(), 1, out.data(), 48);
  for (std::size_t i = 0; i < 48; ++i) EXPECT_EQ(out[i] == -7.0f, i < 32 || i >= 40) << i;
}

TEST_P(MatrixKernelTest, StripsMayBePackedInAnyOrder) {
  const Matrix matrix(type(), 70, 512);
  const Packed packed(matrix, set());
  const MatrixKernel& kernel = packed.kernel;
  const AlignedBytes bytes = Allocate(kernel.PackedBytes(70));
  for (const auto& [first, end] : {std::pair{3, 5}, {0, 1}, {1, 3}}) {
    kernel.Pack(matrix.encoded.data(), 70, static_cast<std::size_t>(first),
                static_cast<std::size_t>(end), bytes.get());
  }
  EXPECT_EQ(std::memcmp(bytes.get(), packed.bytes.get(), kernel.PackedBytes(70)), 0);
}

TEST_P(MatrixKernelTest, NonFiniteActivationsStayInTheirRow) {
  const Matrix matrix(type(), 32, 512);
  const Packed packed(matrix, set());
  const auto clean = RandomRows(5, matrix.row_width);
  const auto expected = packed.Multiply(clean);
  for (const float poison :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
        -std::numeric_limits<float>::infinity()}) {
    auto rows = clean;
    rows[2][300] = poison;
    const auto out = packed.Multiply(rows);
    for (std::size_t i = 0; i < out.size(); ++i) {
      if (i / 32 == 2) {
        EXPECT_TRUE(IsFloat(type()) ? !std::isfinite(out[i]) : std::isnan(out[i])) << i;
      } else {
        EXPECT_EQ(out[i], expected[i]) << i;
      }
    }
  }
}

TEST_P(MatrixKernelTest, TinyAndZeroActivationsGiveFiniteResults) {
  const Matrix matrix(type(), 16, 256);
  const Packed packed(matrix, set());
  std::vector<std::vector<float>> rows(3, std::vector<float>(256, 0.0f));
  rows[1].assign(256, 1e-44f);
  rows[2].assign(256, std::numeric_limits<float>::min());
  const auto out = packed.Multiply(rows);
  for (std::size_t i = 0; i < 16; ++i) EXPECT_EQ(out[i], 0.0f);
  for (const float value : out) EXPECT_TRUE(std::isfinite(value) && std::abs(value) < 1e-30f);
}

TEST_P(MatrixKernelTest, PartsOfARowQuantiseAsTheWholeRow) {
  const auto kernel = MatrixKernel::Make(type(), 768, set());
  ASSERT_TRUE(kernel);
  const auto row = RandomRows(1, 768)[0];
  const AlignedBytes whole = Allocate(kernel->quantized_bytes());
  const AlignedBytes parts = Allocate(kernel->quantized_bytes());
  kernel->QuantizeRow(row.data(), whole.get());
  kernel->QuantizePart(row.data() + 256, 256, 512, parts.get());
  kernel->QuantizePart(row.data(), 0, 256, parts.get());
  EXPECT_EQ(std::memcmp(whole.get(), parts.get(), kernel->quantized_bytes()), 0);
}

std::string NameOf(const testing::TestParamInfo<std::tuple<int, InstructionSet>>& info) {
  return std::string(ggml_type_name(static_cast<ggml_type>(std::get<0>(info.param)))) + "_" +
         std::string(InstructionSetName(std::get<1>(info.param)));
}

INSTANTIATE_TEST_SUITE_P(All, MatrixKernelTest,
                         testing::Combine(testing::ValuesIn(kTypes),
                                          testing::ValuesIn(AvailableInstructionSets().begin(),
                                                            AvailableInstructionSets().end())),
                         NameOf);

TEST(MatrixKernel, UnknownTypesAndWidthsAreRefused) {
  EXPECT_FALSE(MatrixKernel::Supports(GGML_TYPE_I32, 256));
  EXPECT_TRUE(MatrixKernel::Supports(GGML_TYPE_F16, 5));
  EXPECT_FALSE(MatrixKernel::Supports(GGML_TYPE_Q4_K, 128));
  EXPECT_FALSE(MatrixKernel::Supports(GGML_TYPE_Q4_K, 0));
  EXPECT_FALSE(MatrixKernel::Supports(GGML_TYPE_Q8_0, 48));
  EXPECT_TRUE(MatrixKernel::Supports(GGML_TYPE_Q8_0, 96));
  const auto refused = MatrixKernel::Make(GGML_TYPE_Q4_K, 128);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().kind, base::ErrorKind::kUnsupported);
}

TEST(MatrixKernel, ActivationsServeAllKernelsOfTheirFormat) {
  const auto q4_k = MatrixKernel::Make(GGML_TYPE_Q4_K, 512);
  const auto q6_k = MatrixKernel::Make(GGML_TYPE_Q6_K, 512);
  const auto q8_0 = MatrixKernel::Make(GGML_TYPE_Q8_0, 512);
  const auto f32 = MatrixKernel::Make(GGML_TYPE_F32, 512);
  const auto bf16 = MatrixKernel::Make(GGML_TYPE_BF16, 512);
  ASSERT_TRUE(q4_k && q6_k && q8_0 && f32 && bf16);
  EXPECT_TRUE(q4_k->SameActivations(*q6_k));
  EXPECT_FALSE(f32->SameActivations(*bf16));
  EXPECT_FALSE(q4_k->SameActivations(*q8_0));
  EXPECT_FALSE(q8_0->SameActivations(*f32));
}

// As ggml rounds them.
TEST(MatrixKernel, ActivationsOf16BitWeightsAreRoundedToThem) {
  const std::vector<float> row = {0.1f,    -1.0f / 3, 65504.0f,  65519.9f,    65520.0f,
                                  -1e30f,  6e-8f,     -4e-8f,    1e-9f,       0.0f,
                                  -0.0f,   2049.0f,   2051.0f,   1.00390625f, 1.01171875f,
                                  3.4e38f, INFINITY,  -INFINITY, NAN};
  for (const InstructionSet set : AvailableInstructionSets()) {
    for (const int type : {GGML_TYPE_F16, GGML_TYPE_BF16}) {
      const auto kernel = MatrixKernel::Make(type, row.size(), set);
      ASSERT_TRUE(kernel);
      std::vector<float> ours(row.size());
      kernel->QuantizeRow(row.data(), reinterpret_cast<std::byte*>(ours.data()));
      for (std::size_t i = 0; i < row.size(); ++i) {
        const float expected = type == GGML_TYPE_F16 ? ggml_fp16_to_fp32(ggml_fp32_to_fp16(row[i]))
                                                     : ggml_bf16_to_fp32(ggml_fp32_to_bf16(row[i]));
        EXPECT_TRUE(ours[i] == expected || (std::isnan(ours[i]) && std::isnan(expected)))
            << InstructionSetName(set) << " " << type << ": " << row[i] << " became " << ours[i]
            << ", not " << expected;
      }
    }
  }
}

TEST(MatrixKernel, InstructionSetsWithFusedSumsGiveTheSameBits) {
  for (const int type : kTypes) {
    const Matrix matrix(type, 48, 512);
    const auto rows = RandomRows(6, matrix.row_width);
    const auto best = Packed(matrix, BestInstructionSet()).Multiply(rows);
    for (const InstructionSet set : AvailableInstructionSets()) {
      if (set == InstructionSet::kBaseline) continue;
      EXPECT_TRUE(SameBits(Packed(matrix, set).Multiply(rows), best))
          << type << " " << InstructionSetName(set);
    }
  }
}

TEST(InstructionSets, EndWithTheBest) {
  const auto sets = AvailableInstructionSets();
  ASSERT_FALSE(sets.empty());
  EXPECT_EQ(sets.front(), InstructionSet::kBaseline);
  EXPECT_EQ(sets.back(), BestInstructionSet());
}

}  // namespace
}  // namespace kernels
