// What a layer on a ggml RPC server costs: one row, all its experts there. Prints the bare round
// trip of the connection (four bytes fetched) and a layer, which is one round trip too, but carries
// a row, its sums and the graph. The layer's sums are compared with the CPU's first. The process
// ends, as ggml has it, when nobody answers.
//
//   rpc_bench HOST:PORT
#include <ggml-backend.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "gg/devices.h"
#include "gg/handles.h"
#include "gg/rpc_device.h"
#include "moe/compute/device_compute.h"
#include "moe/compute/host_compute.h"
#include "random_layer.h"

namespace {

constexpr int kWarmUps = 50;
constexpr int kSamples = 1000;
constexpr double kMostError = 1e-3;  // of the sums' mean square

void Fail(const std::string& why) {
  std::fprintf(stderr, "rpc_bench: %s\n", why.c_str());
  std::exit(1);
}

template <class T>
T Value(base::Result<T> result) {
  if (!result) Fail(result.error().message);
  return *std::move(result);
}

void Check(const base::Result<void>& result) {
  if (!result) Fail(result.error().message);
}

template <class Work>
double MedianMicroseconds(const Work& work) {
  std::vector<double> samples;
  for (int i = 0; i < kWarmUps + kSamples; ++i) {
    const auto start = std::chrono::steady_clock::now();
    work();
    const std::chrono::duration<double, std::micro> time = std::chrono::steady_clock::now() - start;
    if (i >= kWarmUps) samples.push_back(time.count());
  }
  std::ranges::nth_element(samples, samples.begin() + kSamples / 2);
  return samples[kSamples / 2];
}

double BareRoundTrip(const gg::Device& device) {
  auto context = Value(gg::Context::Make(1));
  ggml_tensor* one = ggml_new_tensor_1d(context.get(), GGML_TYPE_F32, 1);
  const auto buffer =
      Value(gg::Buffer::ForContext(context, ggml_backend_dev_buffer_type(device.handle)));
  float value = 1;
  ggml_backend_tensor_set(one, &value, 0, sizeof value);
  return MedianMicroseconds([&] { ggml_backend_tensor_get(one, &value, 0, sizeof value); });
}

void Run(moe::MoeExpertCompute& compute, const moe::ExpertBatch& batch) {
  Check(compute.Begin(batch));
  compute.Prepare({});
  compute.Expand({});
  compute.Reduce({});
  Check(compute.Finish());
}

// Against the same experts on the CPU.
void CheckSums(moe::MoeExpertCompute& remote, const bench::RandomLayer& layer) {
  Run(remote, layer.batch);
  auto host = Value(moe::HostCompute::Make({.weights = layer.weights}));
  Run(*host, layer.batch);
  const moe::ExpertPart pairs = host->part(0);
  double error = 0;
  double square = 0;
  for (std::size_t c = 0; c < layer.batch.n_embd; ++c) {
    double expected = 0;
    for (std::size_t k = 0; k < layer.batch.num_used; ++k) {
      expected += static_cast<double>(layer.batch.weights[k]) * pairs.pairs[k][c];
    }
    error += std::pow(remote.part(0).sums[c] - expected, 2);
    square += expected * expected;
  }
  if (!(error <= kMostError * square)) Fail("the server computes wrong sums");
}

double Layer(const gg::Device& device, const bench::LayerShape& shape) {
  const bench::RandomLayer layer(shape, GGML_TYPE_Q8_0, GGML_TYPE_Q8_0, 1);
  auto compute = Value(moe::DeviceCompute::Make({.name = device.name,
                                                 .device = device,
                                                 .weights = layer.weights,
                                                 .num_used = shape.num_used,
                                                 .max_rows = 1}));
  Check(compute->LoadLayer(moe::LayerId(0)));
  CheckSums(*compute, layer);
  return MedianMicroseconds([&] { Run(*compute, layer.batch); });
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) Fail("usage: rpc_bench HOST:PORT");
  Value(gg::DiscoverDevices());
  const gg::Device device = Value(gg::ConnectRpcDevice(argv[1], 0, argv[1]));
  const double bare = BareRoundTrip(device);
  std::printf("bare round trip: %.1f us\n", bare);
  for (const bench::LayerShape& shape :
       {bench::LayerShape{.n_embd = 2048, .n_ff = 32, .num_experts = 2, .num_used = 1},
        bench::LayerShape{.n_embd = 2048, .n_ff = 512, .num_experts = 32, .num_used = 8}}) {
    const double layer = Layer(device, shape);
    std::printf("layer with %zu experts of %zu x %zu: %.1f us, %.2f times that\n", shape.num_used,
                shape.n_embd, shape.n_ff, layer, layer / bare);
  }
  return 0;
}
