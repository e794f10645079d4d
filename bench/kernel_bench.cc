// Products of a weight matrix with 1 to 256 activation rows on one thread: MatrixKernel against
// ggml's mul_mat on the same weights, in turn, in the same run, in CPU time. ggml stores the matrix
// as llama.cpp does by default: repacked where it has a layout for the type. Both results are
// compared before anything is timed. The matrix, 16384 x 2048, does not fit into the second-level
// cache.
//
// weight_GBps: the file's bytes of the matrix per second. gops: 2 operations a weight and row.
#include <benchmark/benchmark.h>
#include <ggml-cpp.h>
#include <sys/mman.h>
#include <time.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "gg/devices.h"
#include "gg/handles.h"
#include "kernels/matrix_kernel.h"

namespace {

constexpr std::size_t kNumRows = 16384;
constexpr std::size_t kRowWidth = 2048;

std::int64_t Int(std::size_t n) { return static_cast<std::int64_t>(n); }

double CpuSeconds() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// Encoded weights: a few random rows in random order.
std::vector<std::byte> RandomWeights(ggml_type type) {
  constexpr std::size_t kPool = 64;
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> values(kPool * kRowWidth);
  for (float& value : values) value = normal(random);
  const std::size_t row_bytes = ggml_row_size(type, kRowWidth);
  std::vector<std::byte> pool(kPool * row_bytes);
  const std::vector<float> importance(kRowWidth, 1.0f);
  ggml_quantize_chunk(type, values.data(), pool.data(), 0, kPool, kRowWidth, importance.data());
  std::vector<std::byte> rows(kNumRows * row_bytes);
  for (std::size_t r = 0; r < kNumRows; ++r) {
    std::copy_n(pool.data() + random() % kPool * row_bytes, row_bytes, rows.data() + r * row_bytes);
  }
  return rows;
}

// Memory in huge pages where the system has them.
class Memory {
 public:
  explicit Memory(std::size_t bytes) : bytes_(bytes + kHuge) {
    data_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data_ == MAP_FAILED) std::abort();
    aligned_ = reinterpret_cast<std::byte*>((reinterpret_cast<std::uintptr_t>(data_) + kHuge - 1) /
                                            kHuge * kHuge);
    madvise(aligned_, bytes, MADV_HUGEPAGE);
  }
  Memory(const Memory&) = delete;
  ~Memory() { munmap(data_, bytes_); }
  std::byte* get() const { return aligned_; }

 private:
  static constexpr std::size_t kHuge = std::size_t{2} << 20;
  std::size_t bytes_;
  void* data_;
  std::byte* aligned_;
};

// Quantises, builds panels and multiplies: all that ggml's mul_mat does in one call.
class Ours {
 public:
  Ours(const kernels::MatrixKernel& kernel, const std::vector<std::byte>& weights,
       const std::vector<float>& rows)
      : kernel_(kernel),
        weights_(weights),
        packed_(kernel.PackedBytes(kNumRows)),
        rows_(rows),
        num_activations_(rows.size() / kRowWidth),
        quantized_(num_activations_ * kernel.quantized_bytes()),
        panels_(kernel.PanelBytes(num_activations_)) {
    const auto pack = [&] {
      kernel_.Pack(weights.data(), kNumRows, 0, kernels::MatrixKernel::NumStrips(kNumRows),
                   packed_.get());
    };
    pack();  // the system's part, the first touch of the memory, does not count
    const double start = CpuSeconds();
    pack();
    pack_rate_ = static_cast<double>(weights.size()) / (CpuSeconds() - start);
  }

  void Run(std::vector<float>& out, bool packed) {
    std::vector<const std::byte*> pointers;
    for (std::size_t i = 0; i < num_activations_; ++i) {
      std::byte* quantized = quantized_.data() + i * kernel_.quantized_bytes();
      kernel_.QuantizeRow(rows_.data() + i * kRowWidth, quantized);
      pointers.push_back(quantized);
    }
    kernel_.BuildPanels(pointers.data(), num_activations_, panels_.data());
    const std::size_t strips = kernels::MatrixKernel::NumStrips(kNumRows);
    if (packed) {
      kernel_.Multiply(packed_.get(), kNumRows, 0, strips, panels_.data(), num_activations_,
                       out.data(), kNumRows);
    } else {
      kernel_.MultiplyFile(weights_.data(), kNumRows, 0, strips, panels_.data(), num_activations_,
                           out.data(), kNumRows);
    }
  }

  double pack_rate() const { return pack_rate_; }

 private:
  kernels::MatrixKernel kernel_;
  const std::vector<std::byte>& weights_;
  Memory packed_;
  const std::vector<float>& rows_;
  std::size_t num_activations_;
  std::vector<std::byte> quantized_;
  std::vector<std::byte> panels_;
  double pack_rate_ = 0;
};

// ggml's buffer type for repacked weights; nullptr when this build has none.
ggml_backend_buffer_type_t RepackType(ggml_backend_dev_t device) {
  auto* reg = ggml_backend_dev_backend_reg(device);
  const auto get = reinterpret_cast<ggml_backend_dev_get_extra_bufts_t>(
      ggml_backend_reg_get_proc_address(reg, "ggml_backend_dev_get_extra_bufts"));
  if (get == nullptr) return nullptr;
  for (ggml_backend_buffer_type_t* type = get(device); type != nullptr && *type != nullptr;
       ++type) {
    if (std::string(ggml_backend_buft_name(*type)) == "CPU_REPACK") return *type;
  }
  return nullptr;
}

class Ggml {
 public:
  Ggml(gg::Backend backend, gg::Context weights, gg::Context context, ggml_type type,
       const std::vector<std::byte>& encoded, const std::vector<float>& rows)
      : backend_(std::move(backend)), weights_(std::move(weights)), context_(std::move(context)) {
    backend_.SetThreads(1);
    ggml_tensor* matrix = ggml_new_tensor_2d(weights_.get(), type, kRowWidth, kNumRows);
    ggml_tensor* x =
        ggml_new_tensor_2d(context_.get(), GGML_TYPE_F32, kRowWidth, Int(rows.size() / kRowWidth));
    product_ = ggml_mul_mat(context_.get(), matrix, x);
    graph_ = context_.NewGraph(8);
    ggml_build_forward_expand(graph_, product_);
    const ggml_backend_buffer_type_t repack = RepackType(backend_.device());
    if (repack != nullptr) {
      // A type without a repacked layout is refused by the operation's support.
      ggml_backend_buffer_ptr probe(ggml_backend_buft_alloc_buffer(repack, 0));
      matrix->buffer = probe.get();
      repacked_ = ggml_backend_dev_supports_op(backend_.device(), product_);
      matrix->buffer = nullptr;
    }
    weight_buffer_.reset(repacked_
                             ? ggml_backend_alloc_ctx_tensors_from_buft(weights_.get(), repack)
                             : ggml_backend_alloc_ctx_tensors(weights_.get(), backend_.get()));
    buffer_.reset(ggml_backend_alloc_ctx_tensors(context_.get(), backend_.get()));
    ggml_backend_tensor_set(matrix, encoded.data(), 0, encoded.size());
    ggml_backend_tensor_set(x, rows.data(), 0, ggml_nbytes(x));
  }

  bool Run() { return ggml_backend_graph_compute(backend_.get(), graph_) == GGML_STATUS_SUCCESS; }
  void Read(std::vector<float>& out) const {
    ggml_backend_tensor_get(product_, out.data(), 0, out.size() * sizeof(float));
  }
  bool repacked() const { return repacked_; }

 private:
  gg::Backend backend_;
  ggml_backend_buffer_ptr weight_buffer_;
  ggml_backend_buffer_ptr buffer_;
  gg::Context weights_;
  gg::Context context_;
  ggml_cgraph* graph_ = nullptr;
  ggml_tensor* product_ = nullptr;
  bool repacked_ = false;
};

bool Agree(const std::vector<float>& a, const std::vector<float>& b) {
  double error = 0;
  double power = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    error += std::pow(static_cast<double>(a[i] - b[i]), 2);
    power += std::pow(static_cast<double>(b[i]), 2);
  }
  return error < 1e-3 * power;
}

double Median(std::vector<double> values) {
  std::ranges::nth_element(values, values.begin() + Int(values.size() / 2));
  return values[values.size() / 2];
}

// Products from packed weights, or from the file's layout.
void Product(benchmark::State& state, ggml_type type, kernels::InstructionSet set, bool packed) {
  const auto devices = gg::DiscoverDevices();
  if (!devices) return state.SkipWithError("no CPU backend");
  const auto kernel = kernels::MatrixKernel::Make(type, kRowWidth, set);
  auto backend = gg::Backend::Open(devices->back());
  auto weights_context = gg::Context::Make(8);
  auto context = gg::Context::Make(8, 8);
  if (!kernel || !backend || !weights_context || !context) {
    return state.SkipWithError("cannot set up");
  }
  const std::vector<std::byte> weights = RandomWeights(type);
  std::mt19937 random(2);
  std::normal_distribution<float> normal;
  std::vector<float> rows(static_cast<std::size_t>(state.range(0)) * kRowWidth);
  for (float& value : rows) value = normal(random);
  Ours ours(*kernel, weights, rows);
  Ggml ggml(std::move(*backend), std::move(*weights_context), std::move(*context), type, weights,
            rows);
  std::vector<float> our_out(rows.size() / kRowWidth * kNumRows);
  std::vector<float> ggml_out(our_out.size());
  ours.Run(our_out, packed);
  if (!ggml.Run()) return state.SkipWithError("ggml failed");
  ggml.Read(ggml_out);
  if (!Agree(our_out, ggml_out)) return state.SkipWithError("the results differ");
  std::vector<double> our_times;
  std::vector<double> ratios;
  for (auto _ : state) {
    const double start = CpuSeconds();
    ours.Run(our_out, packed);
    const double middle = CpuSeconds();
    ggml.Run();
    our_times.push_back(middle - start);
    ratios.push_back((CpuSeconds() - middle) / (middle - start));
    state.SetIterationTime(middle - start);
  }
  const double time = Median(our_times);
  state.counters["weight_GBps"] = static_cast<double>(weights.size()) / time / 1e9;
  state.counters["gops"] = 2.0 * static_cast<double>(rows.size()) * kNumRows / time / 1e9;
  state.counters["ggml_time_over_ours"] = Median(ratios);
  state.counters["ggml_repacked"] = ggml.repacked();
  state.counters["pack_GBps"] = ours.pack_rate() / 1e9;
}

void Register() {
  constexpr ggml_type kTypes[] = {
      GGML_TYPE_Q4_K,  GGML_TYPE_Q6_K,   GGML_TYPE_Q8_0,    GGML_TYPE_Q5_K,  GGML_TYPE_IQ4_XS,
      GGML_TYPE_MXFP4, GGML_TYPE_Q4_0,   GGML_TYPE_Q4_1,    GGML_TYPE_Q5_0,  GGML_TYPE_Q5_1,
      GGML_TYPE_Q2_K,  GGML_TYPE_Q3_K,   GGML_TYPE_IQ2_XXS, GGML_TYPE_IQ3_S, GGML_TYPE_IQ1_S,
      GGML_TYPE_IQ1_M, GGML_TYPE_IQ4_NL, GGML_TYPE_TQ1_0,   GGML_TYPE_TQ2_0, GGML_TYPE_Q1_0,
      GGML_TYPE_Q2_0,  GGML_TYPE_NVFP4,  GGML_TYPE_F16,     GGML_TYPE_BF16,  GGML_TYPE_F32};
  for (const ggml_type type : kTypes) {
    for (const kernels::InstructionSet set : kernels::AvailableInstructionSets()) {
      for (const bool packed : {true, false}) {
        const std::string name = "Product/" + std::string(ggml_type_name(type)) + "/" +
                                 std::string(kernels::InstructionSetName(set)) +
                                 (packed ? "" : "/file");
        benchmark::RegisterBenchmark(name, Product, type, set, packed)
            ->Arg(1)
            ->Arg(8)
            ->Arg(32)
            ->Arg(256)
            ->UseManualTime()
            ->Unit(benchmark::kMicrosecond);
      }
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  // ggml at its best: gg switches its tiled products off otherwise.
  setenv("GGML_CPU_TILED_MM", "1", 0);
  Register();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
