// What it costs that a layer's experts have two owners. One row, one thread on the CPU; the owners
// have half of the experts each. Prints one JSON object: medians in microseconds, and in empty
// round trips to the device what lies beyond the device's own computation, for its owner alone and
// for the whole split. A software device computes on the cores that the CPU's owner wants.
//
//   GGML_VK_VISIBLE_DEVICES=0 split_bench [DEVICE]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <format>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gg/devices.h"
#include "gg/handles.h"
#include "moe/compute/device_compute.h"
#include "moe/compute/device_graph.h"
#include "moe/compute/host_compute.h"
#include "moe/compute/multi_compute.h"
#include "moe/plan/plan.h"
#include "random_layer.h"

namespace {

constexpr bench::LayerShape kShape = {.n_embd = 256, .n_ff = 256, .num_experts = 16, .num_used = 8};
constexpr int kWarmUps = 50;
constexpr int kSamples = 500;

template <class Work>
double Microseconds(const Work& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start)
      .count();
}

double Median(std::vector<double> samples) {
  std::ranges::nth_element(samples, samples.begin() + samples.size() / 2);
  return samples[samples.size() / 2];
}

void Fail(const std::string& why) {
  std::fprintf(stderr, "split_bench: %s\n", why.c_str());
  std::exit(1);
}

template <class T>
T Value(base::Result<T> result) {
  if (!result) Fail(result.error().message);
  return *std::move(result);
}

// The device owns the even experts, the CPU the odd ones.
std::shared_ptr<const moe::ExpertSplitRuntime> HalfEach() {
  moe::ModelShape model;
  model.identity.num_layers = 1;
  model.identity.num_experts = kShape.num_experts;
  model.num_experts = kShape.num_experts;
  model.experts_per_token = kShape.num_used;
  const base::Bytes matrix(sizeof(float) * kShape.n_embd * kShape.n_ff);
  model.layers.push_back({.block = 0, .unit = {.gate = matrix, .up = matrix, .down = matrix}});
  std::vector<std::uint8_t> owners;
  for (std::size_t e = 0; e < kShape.num_experts; ++e) {
    owners.push_back(static_cast<std::uint8_t>(e % 2));
  }
  const auto plan = moe::ExpertSplitPlan::FromOwners(
      model, moe::Hotness::Uniform(model),
      {{.name = "device", .capacity = std::nullopt}, {.name = "cpu", .capacity = std::nullopt}},
      std::move(owners));
  if (!plan) Fail(plan.error().message);
  return moe::ExpertSplitRuntime::Make(*plan);
}

// Sends a row, adds it to itself, fetches it.
class EmptyRoundTrip {
 public:
  explicit EmptyRoundTrip(const gg::Device& device)
      : backend_(Value(gg::Backend::Open(device))), context_(Value(gg::Context::Make(8, 8))) {
    x_ = ggml_new_tensor_1d(context_.get(), GGML_TYPE_F32, kShape.n_embd);
    sum_ = ggml_add(context_.get(), x_, x_);
    graph_ = context_.NewGraph(8);
    ggml_build_forward_expand(graph_, sum_);
    buffer_.reset(ggml_backend_alloc_ctx_tensors(context_.get(), backend_.get()));
    if (buffer_ == nullptr) Fail("no memory on the device");
  }

  void Run(std::vector<float>& row) {
    const std::size_t bytes = row.size() * sizeof(float);
    ggml_backend_tensor_set_async(backend_.get(), x_, row.data(), 0, bytes);
    ggml_backend_graph_compute_async(backend_.get(), graph_);
    ggml_backend_synchronize(backend_.get());
    ggml_backend_tensor_get(sum_, row.data(), 0, bytes);
  }

 private:
  gg::Backend backend_;
  gg::Context context_;
  ggml_backend_buffer_ptr buffer_;
  ggml_tensor* x_ = nullptr;
  ggml_tensor* sum_ = nullptr;
  ggml_cgraph* graph_ = nullptr;
};

// The device's part of the batch with its inputs in place: nothing is sent or fetched.
class ComputeAlone {
 public:
  ComputeAlone(const gg::Device& device, const moe::DeviceStack& stack,
               const moe::DeviceBatch& batch)
      : backend_(Value(gg::Backend::Open(device))) {
    const moe::DeviceLaunch& launch = batch.launches().front();
    graph_.emplace(
        Value(moe::DeviceGraph::Build(stack, {.n_embd = kShape.n_embd,
                                              .num_used = kShape.num_used,
                                              .num_pairs = launch.padded_pairs(),
                                              .num_rows = launch.padded_rows(kShape.num_used)})));
    memory_.reset(ggml_gallocr_new(ggml_backend_get_default_buffer_type(backend_.get())));
    if (!ggml_gallocr_alloc_graph(memory_.get(), graph_->graph())) Fail("no memory on the device");
    const auto send = [](ggml_tensor* input, const auto& values) {
      if (input != nullptr) {
        ggml_backend_tensor_set(input, values.data(), 0, values.size() * sizeof(values[0]));
      }
    };
    send(graph_->pair_rows, launch.pair_rows);
    send(graph_->pair_locals, launch.pair_locals);
    send(graph_->slot_pairs, launch.slot_pairs);
    send(graph_->slot_weights, launch.slot_weights);
  }

  void Run() {
    ggml_backend_graph_compute_async(backend_.get(), graph_->graph());
    ggml_backend_synchronize(backend_.get());
  }

 private:
  gg::Backend backend_;
  std::optional<moe::DeviceGraph> graph_;
  ggml_gallocr_ptr memory_;
};

void RunOwner(moe::MoeExpertCompute& owner, const moe::ExpertBatch& batch) {
  if (auto begun = owner.Begin(batch); !begun) Fail(begun.error().message);
  owner.Prepare({});
  owner.Expand({});
  owner.Reduce({});
  if (auto finished = owner.Finish(); !finished) Fail(finished.error().message);
}

void RunBatch(moe::MoeExpertCompute& owner, const moe::ExpertBatch& batch,
              std::vector<float>& out) {
  RunOwner(owner, batch);
  std::vector<moe::ExpertPart> parts;
  for (std::size_t i = 0; i < owner.num_parts(); ++i) parts.push_back(owner.part(i));
  moe::CombineParts(batch, parts, {}, out.data());
}

}  // namespace

int main(int argc, char** argv) {
  const std::string name = argc > 1 ? argv[1] : "vulkan:0";
  const std::vector<gg::Device> devices = Value(gg::DiscoverDevices());
  const gg::Device* device = gg::FindDevice(devices, name);
  if (device == nullptr) Fail(std::format("no device '{}'; see 'expert-split targets'", name));

  const bench::RandomLayer layer(kShape, GGML_TYPE_F32, GGML_TYPE_F32, /*num_rows=*/1);
  const auto runtime = HalfEach();
  const auto make_device = [&] {
    auto compute = Value(moe::DeviceCompute::Make({.name = name,
                                                   .device = *device,
                                                   .weights = layer.weights,
                                                   .runtime = runtime,
                                                   .target = moe::TargetId(0),
                                                   .num_used = kShape.num_used}));
    if (auto loaded = compute->LoadLayer(moe::LayerId(0)); !loaded) Fail(loaded.error().message);
    return compute;
  };
  const auto make_host = [&] {
    return Value(moe::HostCompute::Make(
        {.weights = layer.weights, .runtime = runtime, .target = moe::TargetId(1)}));
  };
  auto on_device = make_device();
  auto on_host = make_host();
  moe::DeviceBatch device_batch;
  std::vector<std::int32_t> locals;
  for (std::size_t e = 0; e < kShape.num_experts; ++e) {
    locals.push_back(e % 2 == 0 ? static_cast<std::int32_t>(e / 2) : -1);
  }
  device_batch.Build(layer.batch, layer.weights->layers[0], locals, kShape.num_experts, 1);

  std::vector<moe::MultiTargetCompute::Owner> owners;
  owners.push_back({moe::TargetId(0), make_device()});
  owners.push_back({moe::TargetId(1), make_host()});
  moe::MultiTargetCompute split(runtime, std::move(owners));

  EmptyRoundTrip round_trip(*device);
  ComputeAlone alone(*device, on_device->stacks(moe::LayerId(0)).front(), device_batch);
  std::vector<float> row(kShape.n_embd);
  std::vector<float> out(kShape.n_embd);
  // In turn, so that a machine that gets slower or faster does so for all of them.
  std::vector<double> empty, device_alone, host_alone, device_owner, together;
  std::vector<double> owner_beyond, split_beyond;
  for (int i = 0; i < kWarmUps + kSamples; ++i) {
    const double trip = Microseconds([&] { round_trip.Run(row); });
    const double device_time = Microseconds([&] { alone.Run(); });
    const double host_time = Microseconds([&] { RunOwner(*on_host, layer.batch); });
    const double owner_time = Microseconds([&] { RunOwner(*on_device, layer.batch); });
    const double split_time = Microseconds([&] { RunBatch(split, layer.batch, out); });
    if (i < kWarmUps) continue;
    empty.push_back(trip);
    device_alone.push_back(device_time);
    host_alone.push_back(host_time);
    device_owner.push_back(owner_time);
    together.push_back(split_time);
    owner_beyond.push_back((owner_time - device_time) / trip);
    split_beyond.push_back((split_time - std::max(device_time, host_time)) / trip);
  }
  std::printf(
      "{\"device\": \"%s\", \"empty_round_trip_us\": %.1f, \"device_alone_us\": %.1f, "
      "\"host_alone_us\": %.1f, \"device_owner_us\": %.1f, \"split_us\": %.1f, "
      "\"owner_beyond_round_trips\": %.2f, \"split_beyond_round_trips\": %.2f}\n",
      name.c_str(), Median(empty), Median(device_alone), Median(host_alone), Median(device_owner),
      Median(together), Median(owner_beyond), Median(split_beyond));
  return 0;
}
