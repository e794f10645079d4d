// The routed experts of one layer on the CPU, one thread: HostCompute, on the file's layout and on
// packed experts, against ggml's own operations on the same weights, in turn, in the same run, in
// CPU time. All results are compared before
// anything is timed. The layer has the shape of a 35B-A3B model (2048 wide, 512 hidden, 8 of 64
// experts a row).
#include <benchmark/benchmark.h>
#include <ggml-cpp.h>
#include <time.h>

#include <cmath>
#include <cstdint>
#include <memory>
#include <vector>

#include "gg/devices.h"
#include "gg/handles.h"
#include "moe/compute/host_compute.h"
#include "random_layer.h"

namespace {

constexpr std::size_t kEmbd = 2048;
constexpr std::size_t kHidden = 512;
constexpr std::size_t kExperts = 64;
constexpr std::size_t kUsed = 8;

std::int64_t Int(std::size_t n) { return static_cast<std::int64_t>(n); }

constexpr bench::LayerShape kShape = {
    .n_embd = kEmbd, .n_ff = kHidden, .num_experts = kExperts, .num_used = kUsed};

void RunOurs(moe::HostCompute& host, const moe::ExpertBatch& batch, std::vector<float>& out) {
  if (!host.Begin(batch)) return;
  host.Prepare({});
  host.Expand({});
  host.Reduce({});
  const moe::ExpertPart parts[] = {host.part(0)};
  moe::CombineParts(batch, parts, {}, out.data());
}

// The node as llama.cpp builds it: one operation after the other over [rows, used] vectors.
class GgmlNode {
 public:
  GgmlNode(gg::Backend backend, gg::Context context, const bench::RandomLayer& layer)
      : backend_(std::move(backend)), context_(std::move(context)) {
    backend_.SetThreads(1);
    ggml_context* ctx = context_.get();
    const auto rows = Int(layer.batch.num_rows);
    const auto stack = [&](const moe::ExpertMatrix& m) {
      return ggml_new_tensor_3d(ctx, static_cast<ggml_type>(m.type), Int(m.row_width),
                                Int(m.num_rows), kExperts);
    };
    const moe::LayerWeights& weights = layer.weights->layers[0];
    ggml_tensor* gate = stack(weights.gate);
    ggml_tensor* up = stack(*weights.up);
    ggml_tensor* down = stack(weights.down);
    ggml_tensor* x = ggml_new_tensor_3d(ctx, GGML_TYPE_F32, kEmbd, 1, rows);
    ggml_tensor* ids = ggml_new_tensor_2d(ctx, GGML_TYPE_I32, kUsed, rows);
    ggml_tensor* routed = ggml_new_tensor_3d(ctx, GGML_TYPE_F32, 1, kUsed, rows);
    ggml_tensor* y =
        ggml_mul(ctx,
                 ggml_mul_mat_id(ctx, down,
                                 ggml_swiglu_split(ctx, ggml_mul_mat_id(ctx, gate, x, ids),
                                                   ggml_mul_mat_id(ctx, up, x, ids)),
                                 ids),
                 routed);
    for (std::size_t s = 0; s < kUsed; ++s) {
      ggml_tensor* slot = ggml_view_2d(ctx, y, kEmbd, rows, y->nb[2], s * y->nb[1]);
      sum_ = s == 0 ? slot : ggml_add(ctx, sum_, slot);
    }
    graph_ = context_.NewGraph(64);
    ggml_build_forward_expand(graph_, sum_);
    buffer_.reset(ggml_backend_alloc_ctx_tensors(ctx, backend_.get()));
    ggml_backend_tensor_set(gate, layer.gate.data(), 0, layer.gate.size());
    ggml_backend_tensor_set(up, layer.up.data(), 0, layer.up.size());
    ggml_backend_tensor_set(down, layer.down.data(), 0, layer.down.size());
    ggml_backend_tensor_set(x, layer.rows.data(), 0, ggml_nbytes(x));
    ggml_backend_tensor_set(ids, layer.ids.data(), 0, ggml_nbytes(ids));
    ggml_backend_tensor_set(routed, layer.routed.data(), 0, ggml_nbytes(routed));
  }

  bool Run() { return ggml_backend_graph_compute(backend_.get(), graph_) == GGML_STATUS_SUCCESS; }
  void Read(std::vector<float>& out) const {
    ggml_backend_tensor_get(sum_, out.data(), 0, out.size() * sizeof(float));
  }

 private:
  gg::Backend backend_;
  gg::Context context_;
  ggml_backend_buffer_ptr buffer_;
  ggml_cgraph* graph_ = nullptr;
  ggml_tensor* sum_ = nullptr;
};

// Of this process: a busy machine changes it less than the time on the wall.
double CpuSeconds() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

bool Agree(const std::vector<float>& a, const std::vector<float>& b) {
  double error = 0;
  double power = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    error += std::pow(static_cast<double>(a[i] - b[i]), 2);
    power += std::pow(static_cast<double>(b[i]), 2);
  }
  return error < 1e-3 * power;
}

enum class Layout { kFile, kPacked };

base::Result<std::unique_ptr<moe::HostCompute>> MakeHost(const bench::RandomLayer& layer,
                                                         Layout layout) {
  moe::HostComputeOptions options{.weights = layer.weights};
  if (layout == Layout::kPacked) {
    const std::vector<std::uint8_t> owned(kExperts, 1);
    auto packed = moe::PackedExperts::Make({.weights = layer.weights.get(), .owned = owned});
    if (!packed) return base::Forward(packed);
    options.packed = *packed;
  }
  return moe::HostCompute::Make(std::move(options));
}

void Experts(benchmark::State& state, ggml_type type, ggml_type down_type, Layout layout) {
  const auto devices = gg::DiscoverDevices();
  if (!devices) return state.SkipWithError("no CPU backend");
  const bench::RandomLayer layer(kShape, type, down_type, static_cast<std::size_t>(state.range(0)));
  auto host = MakeHost(layer, layout);
  auto backend = gg::Backend::Open(devices->back());
  auto context = gg::Context::Make(64, 64);
  if (!host || !backend || !context) return state.SkipWithError("cannot set up");
  GgmlNode ggml(std::move(*backend), std::move(*context), layer);
  std::vector<float> ours(layer.batch.num_rows * kEmbd);
  std::vector<float> theirs(ours.size());
  RunOurs(**host, layer.batch, ours);
  if (!ggml.Run()) return state.SkipWithError("ggml failed");
  ggml.Read(theirs);
  if (!Agree(ours, theirs)) return state.SkipWithError("the results differ");
  double our_time = 0;
  double ggml_time = 0;
  for (auto _ : state) {
    const double start = CpuSeconds();
    RunOurs(**host, layer.batch, ours);
    const double middle = CpuSeconds();
    ggml.Run();
    ggml_time += CpuSeconds() - middle;
    our_time += middle - start;
    state.SetIterationTime(middle - start);
  }
  state.counters["ggml_time_over_ours"] = ggml_time / our_time;
}

BENCHMARK_CAPTURE(Experts, q4_k_q6_k_file, GGML_TYPE_Q4_K, GGML_TYPE_Q6_K, Layout::kFile)
    ->Arg(1)
    ->Arg(4)
    ->Arg(32)
    ->Arg(256)
    ->UseManualTime()
    ->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(Experts, q4_k_q6_k_packed, GGML_TYPE_Q4_K, GGML_TYPE_Q6_K, Layout::kPacked)
    ->Arg(1)
    ->Arg(4)
    ->Arg(32)
    ->Arg(256)
    ->UseManualTime()
    ->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(Experts, q8_0_file, GGML_TYPE_Q8_0, GGML_TYPE_Q8_0, Layout::kFile)
    ->Arg(1)
    ->Arg(4)
    ->Arg(32)
    ->Arg(256)
    ->UseManualTime()
    ->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(Experts, q8_0_packed, GGML_TYPE_Q8_0, GGML_TYPE_Q8_0, Layout::kPacked)
    ->Arg(1)
    ->Arg(4)
    ->Arg(32)
    ->Arg(256)
    ->UseManualTime()
    ->Unit(benchmark::kMicrosecond);

}  // namespace

BENCHMARK_MAIN();
