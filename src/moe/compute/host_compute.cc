#include "moe/compute/host_compute.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "base/check.h"
#include "moe/compute/swiglu.h"

namespace moe {
namespace {

// Up to this many pairs every thread takes its part of every expert.
constexpr std::size_t kFewPairs = 64;
// A cache line of outputs, which threads do not share; a strip of rows.
constexpr std::size_t kLineRows = 16;
static_assert(kLineRows == kernels::kStripRows);

// Parts that each thread gets on average when there are many pairs.
constexpr std::size_t kPartsPerThread = 8;
// Vectors whose panels stay in the second cache level while weights pass.
constexpr std::size_t kPanelVectors = 96;

// Outputs of `up` that wait for their SwiGLU.
constexpr std::size_t kTileOutputs = kPanelVectors * 128;

std::size_t RoundUp(std::size_t value, std::size_t unit) {
  return (value + unit - 1) / unit * unit;
}

// Converted vectors start at a cache line each, so that threads do not share one.
std::size_t Stride(std::size_t bytes) { return RoundUp(bytes, AlignedBuffer::kAlignment); }

}  // namespace

base::Result<HostCompute::Layer> HostCompute::MakeLayer(const HostComputeOptions& options,
                                                        LayerId id) {
  const LayerWeights& weights = options.weights->layers[id.index()];
  if (auto ok = CheckLayerWeights(weights, options.weights->num_experts); !ok) {
    return base::Forward(ok);
  }
  const ExpertMatrix& up_weights = weights.up ? *weights.up : weights.gate;
  if (const auto* packed = options.packed ? options.packed->layer(id) : nullptr) {
    const Projection gate = Projection::Packed(*packed, packed->gate, weights.gate);
    const Projection up = Projection::Packed(*packed, packed->up, up_weights);
    return Layer{.gate = gate,
                 .up = up,
                 .down = Projection::Packed(*packed, packed->down, weights.down),
                 .n_embd = weights.n_embd(),
                 .n_ff = weights.n_ff(),
                 .shared_vectors = gate.kernel().SameActivations(up.kernel()),
                 .packed = packed};
  }
  auto gate = Projection::Mapped(weights.gate, 0);
  if (!gate) return base::Forward(gate);
  auto up = Projection::Mapped(up_weights, weights.up ? 0 : weights.n_ff());
  if (!up) return base::Forward(up);
  auto down = Projection::Mapped(weights.down, 0);
  if (!down) return base::Forward(down);
  return Layer{.gate = *gate,
               .up = *up,
               .down = *down,
               .n_embd = weights.n_embd(),
               .n_ff = weights.n_ff(),
               .shared_vectors = gate->kernel().SameActivations(up->kernel())};
}

base::Result<std::vector<HostCompute::Layer>> HostCompute::MakeLayers(
    const HostComputeOptions& options) {
  std::vector<Layer> layers;
  layers.reserve(options.weights->layers.size());
  for (std::size_t l = 0; l < options.weights->layers.size(); ++l) {
    auto layer = MakeLayer(options, LayerId(l));
    if (!layer) return base::Forward(layer);
    layers.push_back(*layer);
  }
  return layers;
}

base::Result<std::unique_ptr<HostCompute>> HostCompute::Make(HostComputeOptions options) {
  auto layers = MakeLayers(options);
  if (!layers) return base::Forward(layers);
  return std::unique_ptr<HostCompute>(new HostCompute(std::move(options), std::move(*layers)));
}

base::Result<void> HostCompute::SetUnits(std::shared_ptr<const ExpertSplitRuntime> runtime,
                                         std::shared_ptr<const PackedExperts> packed) {
  HostComputeOptions options = options_;
  options.packed = std::move(packed);
  auto layers = MakeLayers(options);
  if (!layers) return base::Forward(layers);
  options_ = std::move(options);
  layers_ = std::move(*layers);
  SetRuntime(std::move(runtime));
  return {};
}

HostCompute::HostCompute(HostComputeOptions options, std::vector<Layer> layers)
    : options_(std::move(options)), layers_(std::move(layers)) {
  SetRuntime(std::move(options_.runtime));
}

void HostCompute::SetRuntime(std::shared_ptr<const ExpertSplitRuntime> runtime) {
  options_.runtime = std::move(runtime);
  const std::size_t num_experts = options_.weights->num_experts;
  owned_.assign(layers_.size() * num_experts, options_.runtime == nullptr ? 1 : 0);
  if (options_.runtime == nullptr) return;
  for (std::size_t l = 0; l < layers_.size(); ++l) {
    for (const ExpertId expert : options_.runtime->experts(LayerId(l), options_.target)) {
      owned_[l * num_experts + expert.index()] = 1;
      ES_CHECK(layers_[l].packed == nullptr || layers_[l].packed->runs[expert.index()] != nullptr);
    }
  }
}

std::size_t HostCompute::CompletedBytes(const Layer& layer) {
  const kernels::MatrixKernel& down = layer.down.kernel();
  return down.granule() == 1 ? 0 : layer.n_ff / down.granule() * sizeof(std::uint32_t);
}

base::Bytes HostCompute::ScratchBytes(std::size_t num_rows, std::size_t num_used) const {
  base::Bytes most;
  const std::size_t pairs = num_rows * num_used;
  for (const Layer& layer : layers_) {
    const std::size_t row =
        Stride(layer.gate.kernel().quantized_bytes()) +
        (layer.shared_vectors ? 0 : Stride(layer.up.kernel().quantized_bytes()));
    const std::size_t n_ff = layer.n_ff;
    const std::size_t pair = (RoundUp(n_ff, kLineRows) + layer.n_embd) * sizeof(float) +
                             Stride(layer.down.kernel().quantized_bytes()) + CompletedBytes(layer);
    most = std::max(most, base::Bytes(row) * num_rows + base::Bytes(pair) * pairs);
  }
  return most;
}

base::Result<void> HostCompute::Begin(const ExpertBatch& batch) {
  if (batch.layer.index() >= layers_.size() ||
      layers_[batch.layer.index()].n_embd != batch.n_embd) {
    return base::Fail(base::ErrorKind::kInternal,
                      "{}: a batch for layer {} with rows of {} elements does not fit the model",
                      options_.name, batch.layer.index(), batch.n_embd);
  }
  batch_ = batch;
  const Layer& layer = this->layer();
  const std::size_t rows = batch.num_rows;
  const std::size_t pairs = rows * batch.num_used;
  const std::size_t n_ff = layer.n_ff;
  bool grown =
      gate_rows_.Grow(rows * Stride(layer.gate.kernel().quantized_bytes())) &&
      (layer.shared_vectors || up_rows_.Grow(rows * Stride(layer.up.kernel().quantized_bytes()))) &&
      hidden_.Grow(pairs * Stride(n_ff * sizeof(float))) &&
      hidden_rows_.Grow(pairs * Stride(layer.down.kernel().quantized_bytes())) &&
      values_.Grow(pairs * Stride(batch.n_embd * sizeof(float))) &&
      completed_.Grow(pairs * CompletedBytes(layer));
  try {
    groups_.Reserve(pairs, options_.weights->num_experts);
    part_ends_.reserve(std::min(pairs, options_.weights->num_experts));
    part_pairs_.resize(pairs);
    gate_vectors_.reserve(pairs);
    up_vectors_.reserve(pairs);
    hidden_vectors_.reserve(pairs);
  } catch (const std::bad_alloc&) {
    grown = false;
  }
  if (!grown) {
    return base::Fail(base::ErrorKind::kCapacity,
                      "{}: no memory for a batch of {} rows ({}): use a smaller batch",
                      options_.name, rows, base::FormatBytes(ScratchBytes(rows, batch.num_used)));
  }
  return {};
}

bool HostCompute::OwnsAny(std::size_t row) const {
  const std::size_t num_experts = options_.weights->num_experts;
  const std::uint8_t* owned = owned_.data() + batch_.layer.index() * num_experts;
  const std::int32_t* ids = batch_.ids + row * batch_.num_used;
  return std::any_of(ids, ids + batch_.num_used, [&](std::int32_t id) {
    const auto expert = static_cast<std::uint32_t>(id);
    return expert < num_experts && owned[expert] != 0;
  });
}

void HostCompute::ConvertRow(std::size_t row) {
  const Layer& layer = this->layer();
  const float* in = batch_.rows + row * batch_.n_embd;
  layer.gate.kernel().QuantizeRow(
      in, gate_rows_.bytes() + row * Stride(layer.gate.kernel().quantized_bytes()));
  if (layer.shared_vectors) return;
  layer.up.kernel().QuantizeRow(
      in, up_rows_.bytes() + row * Stride(layer.up.kernel().quantized_bytes()));
}

void HostCompute::GroupPairs(std::size_t num_threads) {
  const Layer& layer = this->layer();
  const std::size_t num_experts = options_.weights->num_experts;
  groups_.Build(batch_, {owned_.data() + batch_.layer.index() * num_experts, num_experts});
  const std::size_t num_owned = groups_.pairs().size();
  const std::size_t hidden_stride = Stride(layer.n_ff * sizeof(float));
  std::fill(part_pairs_.begin(), part_pairs_.end(), nullptr);
  gate_vectors_.resize(num_owned);
  up_vectors_.resize(num_owned);
  hidden_vectors_.resize(num_owned);
  for (std::size_t p = 0; p < num_owned; ++p) {
    const std::size_t pair = groups_.pairs()[p];
    const std::size_t row = pair / batch_.num_used;
    part_pairs_[pair] =
        values_.floats() + p * Stride(batch_.n_embd * sizeof(float)) / sizeof(float);
    gate_vectors_[p] = gate_rows_.bytes() + row * Stride(layer.gate.kernel().quantized_bytes());
    up_vectors_[p] = layer.shared_vectors
                         ? gate_vectors_[p]
                         : up_rows_.bytes() + row * Stride(layer.up.kernel().quantized_bytes());
    hidden_vectors_[p] =
        layer.down.kernel().takes_floats()
            ? hidden_.bytes() + p * hidden_stride
            : hidden_rows_.bytes() + p * Stride(layer.down.kernel().quantized_bytes());
  }
  if (num_owned * CompletedBytes(layer) != 0) {
    std::memset(completed_.bytes(), 0, num_owned * CompletedBytes(layer));
  }
  part_ends_.clear();
  std::size_t num_parts = 0;
  for (const PairGroup& group : groups_.groups()) {
    num_parts += NumParts(group, num_threads);
    part_ends_.push_back(num_parts);
  }
  if (panels_.size() < num_threads) {
    try {
      panels_.resize(num_threads);
    } catch (const std::bad_alloc&) {  // threads without panels take vector by vector
    }
  }
  next_expand_.store(0, std::memory_order_relaxed);
  next_reduce_.store(0, std::memory_order_relaxed);
  num_pairs_.fetch_add(num_owned, std::memory_order_relaxed);
}

void HostCompute::Prepare(TeamThread thread) {
  if (thread.index == 0) GroupPairs(thread.count);
  const std::size_t end = batch_.num_rows * (thread.index + 1) / thread.count;
  for (std::size_t row = batch_.num_rows * thread.index / thread.count; row < end; ++row) {
    if (OwnsAny(row)) ConvertRow(row);
  }
}

std::size_t HostCompute::NumParts(const PairGroup& group, std::size_t num_threads) const {
  const Layer& layer = this->layer();
  const std::size_t lines = (layer.n_ff + kLineRows - 1) / kLineRows;
  return std::clamp<std::size_t>(
      group.size() * kPartsPerThread * num_threads / groups_.pairs().size(), 1, lines);
}

template <class Compute>
void HostCompute::Share(TeamThread thread, std::size_t num_rows, std::atomic<std::size_t>& next,
                        const Compute& compute) {
  const auto groups = groups_.groups();
  const std::size_t lines = (num_rows + kLineRows - 1) / kLineRows;
  const auto compute_part = [&](const PairGroup& group, std::size_t part, std::size_t num_parts) {
    const std::size_t first = lines * part / num_parts * kLineRows;
    const std::size_t end = std::min(num_rows, lines * (part + 1) / num_parts * kLineRows);
    if (first < end) compute(group, first, end);
  };
  if (groups_.pairs().size() <= kFewPairs) {
    for (const PairGroup& group : groups) compute_part(group, thread.index, thread.count);
    return;
  }
  for (;;) {
    const std::size_t part = next.fetch_add(1, std::memory_order_relaxed);
    if (part >= part_ends_.back()) return;
    const auto end = std::ranges::upper_bound(part_ends_, part);
    const std::size_t begin = end == part_ends_.begin() ? 0 : *(end - 1);
    compute_part(groups[static_cast<std::size_t>(end - part_ends_.begin())], part - begin,
                 *end - begin);
  }
}

HostCompute::Panels* HostCompute::PanelsOf(TeamThread thread) {
  return thread.index < panels_.size() ? &panels_[thread.index] : nullptr;
}

const std::byte* HostCompute::BuildPanels(const Projection& projection,
                                          std::span<const std::byte* const> vectors,
                                          AlignedBuffer& buffer) {
  if (vectors.size() == 1 || !buffer.Grow(projection.kernel().PanelBytes(vectors.size()))) {
    return nullptr;
  }
  projection.kernel().BuildPanels(vectors.data(), vectors.size(), buffer.bytes());
  return buffer.bytes();
}

void HostCompute::Expand(TeamThread thread) {
  Share(thread, layer().n_ff, next_expand_,
        [this, panels = PanelsOf(thread)](const PairGroup& group, std::size_t first,
                                          std::size_t end) {
          ExpandRows(panels, group, first, end);
        });
}

void HostCompute::ExpandRows(Panels* panels, const PairGroup& group, std::size_t first,
                             std::size_t end) {
  const Layer& layer = this->layer();
  for (std::size_t pair = group.begin; pair < group.end; pair += kPanelVectors) {
    const std::size_t num_pairs = std::min(kPanelVectors, group.end - pair);
    const std::byte* gate = nullptr;
    const std::byte* up = nullptr;
    if (panels != nullptr) {
      gate = BuildPanels(layer.gate, {gate_vectors_.data() + pair, num_pairs}, panels->first);
      up = layer.shared_vectors
               ? gate
               : BuildPanels(layer.up, {up_vectors_.data() + pair, num_pairs}, panels->second);
    }
    const std::size_t block = kTileOutputs / num_pairs / kLineRows * kLineRows;
    for (std::size_t row = first; row < end; row += block) {
      ExpandTile(group.expert, pair, num_pairs, row, std::min(block, end - row), gate, up);
    }
  }
  for (std::size_t pair = group.begin; pair < group.end; ++pair) CompleteHidden(pair, first, end);
}

void HostCompute::ExpandTile(ExpertId expert, std::size_t pair, std::size_t num_pairs,
                             std::size_t first, std::size_t num_rows, const std::byte* gate_panels,
                             const std::byte* up_panels) {
  const Layer& layer = this->layer();
  const std::size_t stride = Stride(layer.n_ff * sizeof(float)) / sizeof(float);
  float* hidden = hidden_.floats() + pair * stride + first;
  float up[kTileOutputs];
  layer.gate.Multiply(expert, first, num_rows, gate_vectors_.data() + pair, num_pairs, gate_panels,
                      hidden, stride);
  layer.up.Multiply(expert, first, num_rows, up_vectors_.data() + pair, num_pairs, up_panels, up,
                    num_rows);
  for (std::size_t p = 0; p < num_pairs; ++p) {
    SwiGlu(hidden + p * stride, up + p * num_rows, hidden + p * stride, num_rows);
  }
}

void HostCompute::CompleteHidden(std::size_t pair, std::size_t first, std::size_t end) {
  const Layer& layer = this->layer();
  const kernels::MatrixKernel& down = layer.down.kernel();
  if (down.takes_floats()) return;
  const std::size_t granule = down.granule();
  const float* hidden =
      hidden_.floats() + pair * (Stride(layer.n_ff * sizeof(float)) / sizeof(float));
  std::byte* out = hidden_rows_.bytes() + pair * Stride(down.quantized_bytes());
  if (granule == 1) {
    down.QuantizePart(hidden + first, first, end - first, out);
    return;
  }
  auto* completed =
      reinterpret_cast<std::uint32_t*>(completed_.bytes()) + pair * (layer.n_ff / granule);
  for (std::size_t g = first / granule; g * granule < end; ++g) {
    const std::size_t begin = g * granule;
    const std::size_t rows = std::min(end, begin + granule) - std::max(first, begin);
    // Whoever brings the count to a whole granule sees the rows of all others.
    if (rows != granule &&
        std::atomic_ref(completed[g])
                    .fetch_add(static_cast<std::uint32_t>(rows), std::memory_order_acq_rel) +
                rows !=
            granule) {
      continue;
    }
    down.QuantizePart(hidden + begin, begin, granule, out);
  }
}

void HostCompute::Reduce(TeamThread thread) {
  Share(thread, layer().n_embd, next_reduce_,
        [this, panels = PanelsOf(thread)](const PairGroup& group, std::size_t first,
                                          std::size_t end) {
          ReduceRows(panels, group, first, end);
        });
}

void HostCompute::ReduceRows(Panels* panels, const PairGroup& group, std::size_t first,
                             std::size_t end) {
  const Projection& down = layer().down;
  const std::size_t stride = Stride(batch_.n_embd * sizeof(float)) / sizeof(float);
  for (std::size_t pair = group.begin; pair < group.end; pair += kPanelVectors) {
    const std::span vectors(hidden_vectors_.data() + pair,
                            std::min(kPanelVectors, group.end - pair));
    const std::byte* built =
        panels == nullptr ? nullptr : BuildPanels(down, vectors, panels->first);
    down.Multiply(group.expert, first, end - first, vectors.data(), vectors.size(), built,
                  values_.floats() + pair * stride + first, stride);
  }
}

ExpertPart HostCompute::part(std::size_t) const {
  return {.form = PartForm::kPairs, .pairs = part_pairs_.data()};
}

}  // namespace moe
