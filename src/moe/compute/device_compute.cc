#include "moe/compute/device_compute.h"

#include <ggml-alloc.h>
#include <ggml-backend.h>
#include <ggml.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <new>
#include <utility>

namespace moe {
namespace {

// Rows of a decode step go with the rest of the inputs; more than that are not worth a copy.
constexpr std::size_t kRowBytesToCopy = 128 * 1024;

// Where `tensor`'s values belong in a copy of the inputs.
template <class T>
void Put(const ggml_tensor* tensor, const std::vector<T>& values, std::vector<std::byte>& inputs) {
  if (tensor == nullptr) return;
  std::memcpy(inputs.data() + tensor->view_offs, values.data(), values.size() * sizeof(T));
}

bool HasScales(const LayerWeights& weights) {
  return !weights.gate.scales.empty() || (weights.up && !weights.up->scales.empty());
}

DeviceGraphShape ShapeOf(const LayerWeights& weights, std::size_t num_used, std::size_t num_pairs,
                         std::size_t num_rows) {
  return {.n_embd = weights.n_embd(),
          .num_used = num_used,
          .num_pairs = num_pairs,
          .num_rows = num_rows,
          .scales = HasScales(weights)};
}

DeviceGraphShape LargestShape(const LayerWeights& weights, std::size_t num_used,
                              std::size_t max_rows) {
  return ShapeOf(weights, num_used, PaddedPairs(max_rows * num_used), PaddedRows(max_rows));
}

// One expert in a context; it has no memory, but counts as if it had.
ggml_tensor* PlacedStack(const gg::Context& context, const ExpertMatrix& matrix) {
  ggml_tensor* tensor = ggml_new_tensor_3d(context.get(), static_cast<ggml_type>(matrix.type),
                                           static_cast<std::int64_t>(matrix.row_width),
                                           static_cast<std::int64_t>(matrix.num_rows), 1);
  tensor->data = tensor;
  return tensor;
}

bool AreConsecutive(const std::vector<std::uint32_t>& rows) {
  return rows.back() - rows.front() + 1 == rows.size();
}

}  // namespace

base::Result<base::Bytes> MeasureDeviceScratch(const gg::Device& device,
                                               const ExpertWeights& weights, std::size_t num_used,
                                               std::size_t max_rows) {
  base::Bytes most;
  const ggml_gallocr_ptr allocator(ggml_gallocr_new(ggml_backend_dev_buffer_type(device.handle)));
  for (const LayerWeights& layer : weights.layers) {
    auto context = gg::Context::Make(3);
    if (!context) return base::Forward(context);
    DeviceStack stack{.first = 0, .count = 1};
    stack.gate = PlacedStack(*context, layer.gate);
    if (layer.up) stack.up = PlacedStack(*context, *layer.up);
    stack.down = PlacedStack(*context, layer.down);
    auto graph = DeviceGraph::Build(stack, LargestShape(layer, num_used, max_rows));
    if (!graph) return base::Forward(graph);
    std::size_t size = 0;
    ggml_gallocr_reserve_n_size(allocator.get(), graph->graph(), nullptr, nullptr, &size);
    most = std::max(most, base::Bytes(size));
  }
  return most;
}

base::Result<std::unique_ptr<DeviceCompute>> DeviceCompute::Make(DeviceComputeOptions options) {
  for (const LayerWeights& weights : options.weights->layers) {
    if (auto ok = CheckLayerWeights(weights, options.weights->num_experts); !ok) {
      return base::Forward(ok);
    }
  }
  auto backend = gg::Backend::Open(options.device);
  if (!backend) return base::Forward(backend);
  return std::unique_ptr<DeviceCompute>(new DeviceCompute(std::move(options), std::move(*backend)));
}

DeviceCompute::DeviceCompute(DeviceComputeOptions options, gg::Backend backend)
    : options_(std::move(options)),
      layers_(options_.weights->layers.size()),
      backend_(std::move(backend)),
      scratch_(ggml_gallocr_new(ggml_backend_get_default_buffer_type(backend_.get()))) {
  SetRuntime(options_.runtime);
}

DeviceCompute::~DeviceCompute() {
  ggml_backend_synchronize(backend_.get());
  graphs_.clear();
  scratch_.reset();
  layers_.clear();
}

std::vector<ExpertId> DeviceCompute::OwnedExperts(LayerId layer) const {
  std::vector<ExpertId> experts;
  if (options_.runtime != nullptr) {
    const auto owned = options_.runtime->experts(layer, options_.target);
    experts.assign(owned.begin(), owned.end());
  } else {
    for (std::size_t e = 0; e < options_.weights->num_experts; ++e) experts.emplace_back(e);
  }
  return experts;
}

void DeviceCompute::SetRuntime(std::shared_ptr<const ExpertSplitRuntime> runtime) {
  options_.runtime = std::move(runtime);
  std::vector<std::int32_t> places(options_.weights->num_experts);
  for (std::size_t l = 0; l < layers_.size(); ++l) {
    Layer& layer = layers_[l];
    layer.owned = OwnedExperts(LayerId(l));
    std::ranges::fill(places, -1);
    for (std::size_t i = 0; i < layer.places.size(); ++i) {
      if (layer.places[i]) places[layer.places[i]->index()] = static_cast<std::int32_t>(i);
    }
    const auto is_there = [&](ExpertId expert) { return places[expert.index()] >= 0; };
    if (!std::ranges::all_of(layer.owned, is_there)) Unload(LayerId(l));
    layer.locals.assign(options_.weights->num_experts, -1);
    for (std::size_t i = 0; i < layer.owned.size(); ++i) {
      const std::size_t expert = layer.owned[i].index();
      layer.locals[expert] = layer.loaded ? places[expert] : static_cast<std::int32_t>(i);
    }
  }
}

void DeviceCompute::Unload(LayerId layer) {
  std::erase_if(graphs_, [&](const auto& graph) { return graph.first.layer == layer.index(); });
  layers_[layer.index()].loaded.reset();
  layers_[layer.index()].places.clear();
  if (filling_ && filling_->layer == layer) filling_.reset();
}

void DeviceCompute::UnloadSurplus() {
  for (std::size_t l = 0; l < layers_.size(); ++l) {
    if (layers_[l].places.size() == layers_[l].owned.size()) continue;
    Unload(LayerId(l));
  }
  SetRuntime(options_.runtime);
}

std::optional<std::size_t> DeviceCompute::FindVacancy(const Layer& layer) const {
  for (std::size_t place = 0; place < layer.places.size(); ++place) {
    const std::optional<ExpertId>& expert = layer.places[place];
    if (!expert || layer.locals[expert->index()] < 0) return place;
  }
  return std::nullopt;
}

base::Result<bool> DeviceCompute::FillVacancy(LayerId id, ExpertId expert) {
  Layer& layer = layers_[id.index()];
  if (!filling_ || filling_->layer != id || filling_->expert != expert) {
    if (std::ranges::contains(layer.places, std::optional(expert))) return true;
    const auto place = FindVacancy(layer);
    if (!place) {
      return base::Fail(base::ErrorKind::kInternal, "{}: layer {} has no place for expert {}",
                        options_.name, id.index(), expert.index());
    }
    layer.places[*place].reset();
    filling_ = Filling{.layer = id, .expert = expert, .place = *place};
  }
  auto copied = Guard([&]() -> base::Result<void> {
    layer.loaded->CopyProjection(options_.weights->layers[id.index()], expert, filling_->place,
                                 filling_->num_copied);
    return {};
  });
  if (!copied) return base::Forward(copied);
  if (++filling_->num_copied <
      DeviceExperts::NumProjections(options_.weights->layers[id.index()])) {
    return false;
  }
  layer.places[filling_->place] = expert;
  filling_.reset();
  return true;
}

template <class Work>
base::Result<void> DeviceCompute::Guard(const Work& work) const {
  try {
    return work();
  } catch (const std::bad_alloc&) {
    return base::Fail(base::ErrorKind::kCapacity, "{}: the host is out of memory", options_.name);
  } catch (const std::exception& error) {
    return base::Fail(base::ErrorKind::kDeviceFailure, "{}: the device failed: {}", options_.name,
                      error.what());
  }
}

base::Result<void> DeviceCompute::LoadLayer(LayerId id,
                                            const std::function<void(base::Bytes)>& uploaded) {
  Layer& layer = layers_[id.index()];
  if (layer.loaded || layer.owned.empty()) return {};
  auto loaded = Guard([&]() -> base::Result<void> {
    auto experts = DeviceExperts::Upload(
        backend_, {.target = options_.name,
                   .layer = id,
                   .weights = &options_.weights->layers[id.index()],
                   .experts = layer.owned,
                   .max_pairs = PaddedPairs(options_.max_rows * options_.num_used),
                   .max_stack = options_.max_stack,
                   .allocate = options_.allocate,
                   .form = options_.upload,
                   .uploaded = uploaded});
    if (!experts) return base::Forward(experts);
    layer.loaded.emplace(std::move(*experts));
    return ReserveScratch(id, layer.loaded->stacks().front());
  });
  if (!loaded) {
    layer.loaded.reset();
    return loaded;
  }
  layer.places.assign(layer.owned.begin(), layer.owned.end());
  return {};
}

base::Result<void> DeviceCompute::ReserveScratch(LayerId layer, const DeviceStack& stack) {
  const DeviceGraphShape shape =
      LargestShape(options_.weights->layers[layer.index()], options_.num_used, options_.max_rows);
  auto graph = DeviceGraph::Build(stack, shape);
  if (!graph) return base::Forward(graph);
  if (const ggml_tensor* node = graph->Unsupported(backend_.device())) {
    return base::Fail(base::ErrorKind::kUnsupported,
                      "{}: the device refuses {} for {} pairs: use a smaller batch or leave the "
                      "target out",
                      options_.name, ggml_op_name(node->op), shape.num_pairs);
  }
  const std::size_t before = ggml_gallocr_get_buffer_size(scratch_.get(), 0);
  if (!ggml_gallocr_reserve(scratch_.get(), graph->graph())) {
    // The allocator may have given up what it had: graphs get their memory anew.
    graphs_.clear();
    scratch_.reset(ggml_gallocr_new(ggml_backend_get_default_buffer_type(backend_.get())));
    return base::Fail(base::ErrorKind::kCapacity,
                      "{}: no room for the scratch memory of {} rows: use a smaller batch or give "
                      "the target fewer bytes",
                      options_.name, options_.max_rows);
  }
  if (ggml_gallocr_get_buffer_size(scratch_.get(), 0) != before) graphs_.clear();
  return {};
}

std::span<const DeviceStack> DeviceCompute::stacks(LayerId layer) const {
  const auto& loaded = layers_[layer.index()].loaded;
  return loaded ? loaded->stacks() : std::span<const DeviceStack>();
}

base::Bytes DeviceCompute::weight_bytes() const {
  base::Bytes sum;
  for (const Layer& layer : layers_) {
    if (layer.loaded) sum += layer.loaded->bytes();
  }
  return sum;
}

base::Bytes DeviceCompute::scratch_bytes() const {
  return base::Bytes(ggml_gallocr_get_buffer_size(scratch_.get(), 0));
}

base::Result<DeviceGraph*> DeviceCompute::Graph(const DeviceLaunch& launch) {
  const GraphKey key{batch_.layer.index(), launch.stack, launch.padded_pairs(),
                     launch.padded_rows(batch_.num_used)};
  if (const auto found = graphs_.find(key); found != graphs_.end()) return &found->second;
  auto graph = DeviceGraph::Build(
      layers_[key.layer].loaded->stacks()[key.stack],
      ShapeOf(options_.weights->layers[key.layer], options_.num_used, key.num_pairs, key.num_rows));
  if (!graph) return base::Forward(graph);
  const std::size_t before = ggml_gallocr_get_buffer_size(scratch_.get(), 0);
  if (!ggml_gallocr_alloc_graph(scratch_.get(), graph->graph())) {
    return base::Fail(base::ErrorKind::kCapacity, "{}: no scratch memory for {} pairs",
                      options_.name, key.num_pairs);
  }
  // Larger scratch memory is other memory: what the older graphs point into is gone.
  if (ggml_gallocr_get_buffer_size(scratch_.get(), 0) != before) graphs_.clear();
  ++num_graphs_;
  return &graphs_.emplace(key, std::move(*graph)).first->second;
}

base::Result<void> DeviceCompute::Start(const DeviceLaunch& launch) {
  auto graph = Graph(launch);
  if (!graph) return base::Forward(graph);
  running_ = *graph;
  ggml_backend_t backend = backend_.get();
  const std::size_t row_bytes = batch_.n_embd * sizeof(float);
  const std::size_t rows_bytes = launch.rows.size() * row_bytes;
  const bool apart = AreConsecutive(launch.rows) && rows_bytes > kRowBytesToCopy;
  const std::size_t rows_at = running_->x->view_offs;
  // Padding rows keep what was there: nothing reads them.
  inputs_.resize(rows_at + (apart ? 0 : rows_bytes));
  Put(running_->pair_rows, launch.pair_rows, inputs_);
  Put(running_->pair_locals, launch.pair_locals, inputs_);
  Put(running_->slot_pairs, launch.slot_pairs, inputs_);
  Put(running_->slot_weights, launch.slot_weights, inputs_);
  Put(running_->gate_scales, launch.gate_scales, inputs_);
  Put(running_->up_scales, launch.up_scales, inputs_);
  if (apart) {
    ggml_backend_tensor_set_async(backend, running_->x,
                                  batch_.rows + launch.rows.front() * batch_.n_embd, 0, rows_bytes);
  } else {
    std::byte* to = inputs_.data() + rows_at;
    for (const std::uint32_t row : launch.rows) {
      std::memcpy(to, batch_.rows + row * batch_.n_embd, row_bytes);
      to += row_bytes;
    }
  }
  ggml_backend_tensor_set_async(backend, running_->inputs, inputs_.data(), 0, inputs_.size());
  if (ggml_backend_graph_compute_async(backend, running_->graph()) != GGML_STATUS_SUCCESS) {
    return base::Fail(base::ErrorKind::kDeviceFailure, "{}: the device failed in layer {}",
                      options_.name, batch_.layer.index());
  }
  return {};
}

base::Result<void> DeviceCompute::Collect(const DeviceLaunch& launch) {
  ggml_backend_synchronize(backend_.get());
  const std::size_t count = launch.rows.size() * batch_.n_embd;
  if (covers_all_rows_) {
    ggml_backend_tensor_get(running_->sums, sums_.floats(), 0, count * sizeof(float));
    return {};
  }
  read_.resize(count);
  ggml_backend_tensor_get(running_->sums, read_.data(), 0, count * sizeof(float));
  for (std::size_t i = 0; i < launch.rows.size(); ++i) {
    float* sum = sums_.floats() + launch.rows[i] * batch_.n_embd;
    const float* from = read_.data() + i * batch_.n_embd;
    for (std::size_t c = 0; c < batch_.n_embd; ++c) sum[c] += from[c];
  }
  return {};
}

base::Result<void> DeviceCompute::Begin(const ExpertBatch& batch) {
  batch_ = batch;
  const std::size_t l = batch.layer.index();
  if (l >= layers_.size() || options_.weights->layers[l].n_embd() != batch.n_embd ||
      batch.num_used != options_.num_used) {
    return base::Fail(base::ErrorKind::kInternal,
                      "{}: a batch for layer {} with rows of {} elements and {} experts a row does "
                      "not fit the model",
                      options_.name, l, batch.n_embd, batch.num_used);
  }
  return Guard([&]() -> base::Result<void> {
    const Layer& layer = layers_[l];
    const std::size_t stack_size = layer.loaded ? layer.loaded->stack_size() : 1;
    device_batch_.Build(batch, options_.weights->layers[l], layer.locals, stack_size,
                        options_.max_rows);
    const auto launches = device_batch_.launches();
    if (launches.empty()) return {};
    if (!layer.loaded) {
      return base::Fail(base::ErrorKind::kInternal, "{}: layer {} is not loaded", options_.name, l);
    }
    const std::size_t count = batch.num_rows * batch.n_embd;
    if (!sums_.Grow(count * sizeof(float))) throw std::bad_alloc();
    covers_all_rows_ = launches.size() == 1 && launches[0].rows.size() == batch.num_rows;
    if (!covers_all_rows_) std::fill_n(sums_.floats(), count, 0.0f);
    return Start(launches[0]);
  });
}

base::Result<void> DeviceCompute::Finish() {
  return Guard([&]() -> base::Result<void> {
    const auto launches = device_batch_.launches();
    // Scratch memory holds one launch at a time, so further ones (rare: several stacks, or more
    // rows than max_rows) follow here.
    for (std::size_t i = 0; i < launches.size(); ++i) {
      if (i > 0) {
        if (auto started = Start(launches[i]); !started) return started;
      }
      if (auto collected = Collect(launches[i]); !collected) return collected;
    }
    num_pairs_.fetch_add(device_batch_.num_pairs(), std::memory_order_relaxed);
    return {};
  });
}

ExpertPart DeviceCompute::part(std::size_t) const {
  const bool any = !device_batch_.launches().empty();
  return {.form = PartForm::kSums, .sums = any ? sums_.floats() : nullptr};
}

}  // namespace moe
