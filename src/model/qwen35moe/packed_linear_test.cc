// Packed matrices and the graph nodes that multiply with them, on ggml's CPU backend.
#include "model/qwen35moe/packed_linear.h"

#include <fcntl.h>
#include <ggml-backend.h>
#include <ggml-cpp.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <format>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "gg/devices.h"
#include "model/qwen35moe/packed_product.h"
#include "support/gguf_bytes.h"

namespace model::qwen35moe {
namespace {

struct MatrixSpec {
  ggml_type type;
  std::size_t num_outputs, num_inputs;
};

std::vector<float> RandomValues(std::size_t count, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

std::string Encode(const MatrixSpec& spec, std::uint32_t seed) {
  const std::vector<float> values = RandomValues(spec.num_outputs * spec.num_inputs, seed);
  const auto width = static_cast<std::int64_t>(spec.num_inputs);
  std::string bytes(spec.num_outputs * ggml_row_size(spec.type, width), '\0');
  ggml_quantize_chunk(spec.type, values.data(), bytes.data(), 0,
                      static_cast<std::int64_t>(spec.num_outputs), width, nullptr);
  return bytes;
}

// A file of matrices "m0", "m1", ... and their packed form.
class PackedLinearTest : public testing::Test {
 protected:
  static void SetUpTestSuite() { ASSERT_TRUE(gg::DiscoverDevices()); }

  void Pack(const std::vector<MatrixSpec>& specs, std::size_t num_threads = 3) {
    ASSERT_NO_FATAL_FAILURE(MakeFile(specs));
    auto done = packed_->Pack({.num_threads = num_threads});
    ASSERT_TRUE(done) << done.error().message;
  }

  // Everything but Pack.
  void MakeFile(const std::vector<MatrixSpec>& specs) {
    specs_ = specs;
    test_support::GgufBytes bytes;
    bytes.Text("general.architecture", "any");
    for (std::size_t i = 0; i < specs.size(); ++i) {
      bytes.Tensor(std::format("m{}", i), specs[i].type,
                   {specs[i].num_inputs, specs[i].num_outputs},
                   Encode(specs[i], static_cast<std::uint32_t>(i) + 1));
    }
    const std::string path = std::format("{}/packed_linear_{}_{}.gguf", testing::TempDir(),
                                         ::getpid(), static_cast<const void*>(this));
    ASSERT_TRUE(base::WriteFileAtomically(path, bytes.Build()));
    auto file = gg::GgufFile::Open(path);
    ::unlink(path.c_str());
    ASSERT_TRUE(file) << file.error().message;
    file_ = std::make_unique<gg::GgufFile>(*std::move(file));
    packed_ = std::make_unique<PackedLinears>(*file_);
    for (const gg::GgufTensor& tensor : file_->tensors()) {
      ASSERT_TRUE(PackedLinears::Supports(tensor)) << tensor.name;
      matrices_.push_back(packed_->Add(tensor));
    }
  }

  // The products of all matrices with `num_rows` rows of `x`, as a graph computes them.
  std::vector<std::vector<float>> Multiply(const std::vector<float>& x, std::size_t num_rows,
                                           int num_threads) const {
    ggml_backend_ptr backend(
        ggml_backend_dev_init(ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU), nullptr));
    const auto registry = ggml_backend_dev_backend_reg(ggml_backend_get_device(backend.get()));
    reinterpret_cast<ggml_backend_set_n_threads_t>(ggml_backend_reg_get_proc_address(
        registry, "ggml_backend_set_n_threads"))(backend.get(), num_threads);
    ggml_context_ptr context(
        ggml_init({.mem_size = 64 * ggml_tensor_overhead() + ggml_graph_overhead(),
                   .mem_buffer = nullptr,
                   .no_alloc = true}));
    ggml_tensor* input = ggml_new_tensor_2d(context.get(), GGML_TYPE_F32,
                                            static_cast<std::int64_t>(specs_[0].num_inputs),
                                            static_cast<std::int64_t>(num_rows));
    const PackedProduct product(matrices_);
    std::vector<ggml_tensor*> on_cpu;
    const std::vector<ggml_tensor*> outputs = product.Build(context.get(), input, &on_cpu);
    EXPECT_FALSE(on_cpu.empty());
    ggml_cgraph* graph = ggml_new_graph(context.get());
    for (ggml_tensor* output : outputs) ggml_build_forward_expand(graph, output);
    const ggml_backend_buffer_ptr buffer(
        ggml_backend_alloc_ctx_tensors(context.get(), backend.get()));
    ggml_backend_tensor_set(input, x.data(), 0, ggml_nbytes(input));
    EXPECT_EQ(ggml_backend_graph_compute(backend.get(), graph), GGML_STATUS_SUCCESS);
    std::vector<std::vector<float>> results;
    for (ggml_tensor* output : outputs) {
      EXPECT_TRUE(ggml_is_contiguous(output));
      EXPECT_EQ(output->ne[1], static_cast<std::int64_t>(num_rows));
      results.emplace_back(static_cast<std::size_t>(ggml_nelements(output)));
      ggml_backend_tensor_get(output, results.back().data(), 0, ggml_nbytes(output));
    }
    return results;
  }

  // The relative error of the products of matrix `m`, against doubles over the decoded weights.
  double Nmse(std::size_t m, const std::vector<float>& x,
              const std::vector<float>& products) const {
    const MatrixSpec& spec = specs_[m];
    const std::span<const std::byte> bytes = file_->Data(file_->tensors()[m]);
    std::vector<float> weights(spec.num_outputs * spec.num_inputs);
    ggml_get_type_traits(spec.type)->to_float(bytes.data(), weights.data(),
                                              static_cast<std::int64_t>(weights.size()));
    double error = 0, total = 0;
    for (std::size_t at = 0; at < products.size(); ++at) {
      const std::size_t row = at / spec.num_outputs;
      const std::size_t output = at % spec.num_outputs;
      double exact = 0;
      for (std::size_t i = 0; i < spec.num_inputs; ++i) {
        exact += double{weights[output * spec.num_inputs + i]} * x[row * spec.num_inputs + i];
      }
      error += (products[at] - exact) * (products[at] - exact);
      total += exact * exact;
    }
    return error / total;
  }

  // Pages of tensor `m` that are mapped into this process now; those it shares with its neighbours
  // excluded.
  std::size_t ResidentPages(std::size_t m) const {
    const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
    const std::span<const std::byte> bytes = file_->Data(file_->tensors()[m]);
    const auto begin = (reinterpret_cast<std::uintptr_t>(bytes.data()) + page - 1) / page;
    const auto end = reinterpret_cast<std::uintptr_t>(bytes.data() + bytes.size()) / page;
    EXPECT_LT(begin, end);
    std::vector<std::uint64_t> entries(end - begin);
    const base::UniqueFd map(::open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC));
    EXPECT_EQ(::pread(map.get(), entries.data(), entries.size() * 8, static_cast<off_t>(begin * 8)),
              static_cast<ssize_t>(entries.size() * 8));
    std::size_t resident = 0;
    for (const std::uint64_t entry : entries) resident += entry >> 63;
    return resident;
  }

  std::vector<MatrixSpec> specs_;
  std::unique_ptr<gg::GgufFile> file_;
  std::unique_ptr<PackedLinears> packed_;
  std::vector<const PackedLinear*> matrices_;
};

TEST_F(PackedLinearTest, ProductsAreThoseOfTheWeights) {
  Pack({{GGML_TYPE_Q4_K, 37, 512}, {GGML_TYPE_Q6_K, 1, 512}, {GGML_TYPE_Q5_K, 160, 512}});
  for (const std::size_t rows : {1U, 2U, 12U, 13U, 50U}) {
    const std::vector<float> x = RandomValues(rows * 512, 9);
    const auto products = Multiply(x, rows, 2);
    ASSERT_EQ(products.size(), specs_.size());
    for (std::size_t m = 0; m < specs_.size(); ++m) {
      EXPECT_LT(Nmse(m, x, products[m]), 3e-4) << "matrix " << m << ", " << rows << " rows";
    }
  }
}

TEST_F(PackedLinearTest, WidthsOfNoWholeSuperBlockWork) {
  Pack({{GGML_TYPE_Q8_0, 19, 96}, {GGML_TYPE_Q4_0, 33, 96}});
  const std::vector<float> x = RandomValues(std::size_t{5} * 96, 9);
  const auto products = Multiply(x, 5, 2);
  EXPECT_LT(Nmse(0, x, products[0]), 3e-4);
  EXPECT_LT(Nmse(1, x, products[1]), 3e-4);
}

// Wide rows and many rows take the node that quantises in front, few narrow ones do not.
TEST_F(PackedLinearTest, BitsDoNotDependOnRowsOfACallNorOnThreads) {
  for (const std::size_t width : {std::size_t{256}, std::size_t{48} * 1024}) {
    matrices_.clear();
    Pack({{GGML_TYPE_Q4_K, 70, width}, {GGML_TYPE_Q6_K, 20, width}});
    constexpr std::size_t kRows = 30;
    const std::vector<float> x = RandomValues(kRows * width, 9);
    const auto whole = Multiply(x, kRows, 1);
    for (const int threads : {2, 7}) EXPECT_EQ(Multiply(x, kRows, threads), whole);
    for (const std::size_t rows : {1U, 4U, 11U}) {
      const std::vector<float> first(x.begin(),
                                     x.begin() + static_cast<std::ptrdiff_t>(rows * width));
      const auto part = Multiply(first, rows, 3);
      for (std::size_t m = 0; m < part.size(); ++m) {
        EXPECT_TRUE(std::equal(part[m].begin(), part[m].end(), whole[m].begin()))
            << rows << " rows, width " << width << ", matrix " << m;
      }
    }
  }
}

TEST_F(PackedLinearTest, MoreThreadsThanStripsAreFine) {
  Pack({{GGML_TYPE_Q8_0, 3, 64}}, /*num_threads=*/16);
  const std::vector<float> x = RandomValues(64, 9);
  EXPECT_EQ(Multiply(x, 1, 9), Multiply(x, 1, 1));
}

TEST_F(PackedLinearTest, PagesOfTheFileAreGivenBack) {
  Pack({{GGML_TYPE_Q8_0, 256, 1024}, {GGML_TYPE_Q4_K, 1024, 1024}});
  EXPECT_EQ(ResidentPages(0), 0U);
  EXPECT_EQ(ResidentPages(1), 0U);
  // The count sees pages that are there.
  const volatile std::byte touched = file_->Data(file_->tensors()[1])[100'000];
  static_cast<void>(touched);
  EXPECT_GT(ResidentPages(1), 0U);
}

TEST_F(PackedLinearTest, ReportsTheBytesOfTheFile) {
  MakeFile({{GGML_TYPE_Q8_0, 2048, 1024}, {GGML_TYPE_Q4_K, 1024, 1024}});
  std::vector<base::Bytes> reports;
  base::Bytes whole;
  auto done = packed_->Pack({.num_threads = 2, .progress = [&](base::Bytes so_far, base::Bytes of) {
                               reports.push_back(so_far);
                               whole = of;
                             }});
  ASSERT_TRUE(done) << done.error().message;
  EXPECT_EQ(whole, file_->tensors()[0].bytes + file_->tensors()[1].bytes);
  ASSERT_FALSE(reports.empty());
  EXPECT_EQ(reports.back(), whole);
  EXPECT_EQ(std::ranges::adjacent_find(reports, std::ranges::greater_equal()), reports.end())
      << "a report that says nothing new";
}

TEST_F(PackedLinearTest, NothingIsLeftOfAnInterruptedPacking) {
  MakeFile({{GGML_TYPE_Q8_0, 2048, 1024}, {GGML_TYPE_Q4_K, 1024, 1024}});
  std::stop_source stop;
  std::byte* memory = nullptr;
  const auto is_mapped = [&] {
    unsigned char resident = 0;
    return ::mincore(memory, 1, &resident) == 0;
  };
  std::size_t reports = 0;
  auto done = packed_->Pack({.progress =
                                 [&](base::Bytes, base::Bytes) {
                                   EXPECT_TRUE(is_mapped());
                                   ++reports;
                                   stop.request_stop();
                                 },
                             .stop = stop.get_token(),
                             .allocate =
                                 [&](base::Bytes size) {
                                   auto made = kernels::PackedMemory::Allocate(size);
                                   memory = made->data();
                                   return made;
                                 }});
  ASSERT_FALSE(done);
  EXPECT_EQ(done.error().kind, base::ErrorKind::kCancelled);
  EXPECT_EQ(reports, 1U);
  EXPECT_FALSE(is_mapped());
  for (const PackedLinear* matrix : matrices_) EXPECT_EQ(matrix->packed, nullptr);
  EXPECT_EQ(ResidentPages(0) + ResidentPages(1), 0U) << "of the file";
}

TEST_F(PackedLinearTest, RefusedMemoryIsAnError) {
  MakeFile({{GGML_TYPE_Q8_0, 16, 64}});
  auto done = packed_->Pack({.allocate = [](base::Bytes) -> base::Result<kernels::PackedMemory> {
    return base::Fail(base::ErrorKind::kCapacity, "none");
  }});
  ASSERT_FALSE(done);
  EXPECT_EQ(done.error().kind, base::ErrorKind::kCapacity);
  EXPECT_EQ(matrices_[0]->packed, nullptr);
}

TEST(PackedLinearsTest, OnlyMatricesOfPackedTypesAreSupported) {
  const auto supports = [](int type, std::vector<std::uint64_t> shape) {
    return PackedLinears::Supports({.type = type, .shape = std::move(shape)});
  };
  EXPECT_TRUE(supports(GGML_TYPE_Q4_K, {256, 3}));
  EXPECT_FALSE(supports(GGML_TYPE_Q4_K, {256}));
  EXPECT_FALSE(supports(GGML_TYPE_Q4_K, {256, 3, 2}));
  EXPECT_TRUE(supports(GGML_TYPE_F32, {250, 3}));
  EXPECT_FALSE(supports(GGML_TYPE_Q4_K, {250, 3}));
}

}  // namespace
}  // namespace model::qwen35moe
