#include "moe/compute/host_compute.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <new>
#include <utility>

#include "moe/compute/swiglu.h"

namespace moe {
namespace {

// Up to this many pairs every thread takes its part of every expert.
constexpr std::size_t kFewPairs = 64;
// A cache line of outputs: threads do not share one.
constexpr std::size_t kLineRows = 16;
// Weights of one part that a thread takes when there are many pairs.
constexpr std::size_t kPartBytes = 96 * 1024;
// Weights that stay in the first cache level while a tile of vectors passes.
constexpr std::size_t kBlockBytes = 16 * 1024;
constexpr std::size_t kBlockRows = 64;
constexpr std::size_t kVectorTile = 32;

// One vector passes each row once: long runs of the file in a row are best then.
std::size_t BlockRows(std::size_t row_bytes, std::size_t num_vectors) {
  if (num_vectors == 1) return kBlockRows;
  return std::bit_floor(std::clamp<std::size_t>(kBlockBytes / row_bytes, 1, kBlockRows));
}

std::size_t RoundUp(std::size_t value, std::size_t unit) {
  return (value + unit - 1) / unit * unit;
}

// Converted vectors start at a cache line each, so that threads do not share one.
std::size_t Stride(std::size_t bytes) { return RoundUp(bytes, AlignedBuffer::kAlignment); }

void Scale(float scale, float* values, std::size_t n) {
  if (scale == 1.0f) return;
  for (std::size_t i = 0; i < n; ++i) values[i] *= scale;
}

}  // namespace

const std::byte* HostCompute::Layer::GateRows(ExpertId expert) const {
  return weights->gate.expert(expert);
}

const std::byte* HostCompute::Layer::UpRows(ExpertId expert) const {
  if (weights->up) return weights->up->expert(expert);
  return weights->gate.expert(expert) + weights->n_ff() * weights->gate.row_bytes;
}

base::Result<HostCompute::Layer> HostCompute::MakeLayer(const HostComputeOptions& options,
                                                        const LayerWeights& weights) {
  if (auto ok = CheckLayerWeights(weights, options.weights->num_experts); !ok) {
    return base::Forward(ok);
  }
  const auto kernel = [&](const ExpertMatrix& matrix) {
    return RowKernel::Make(options.traits, matrix.type, matrix.row_width, matrix.tensor);
  };
  auto gate = kernel(weights.gate);
  if (!gate) return base::Forward(gate);
  auto up = weights.up ? kernel(*weights.up) : gate;
  if (!up) return base::Forward(up);
  auto down = kernel(weights.down);
  if (!down) return base::Forward(down);
  return Layer{.gate = *gate,
               .up = *up,
               .down = *down,
               .weights = &weights,
               .shared_vectors = gate->SameVectors(*up)};
}

base::Result<std::unique_ptr<HostCompute>> HostCompute::Make(HostComputeOptions options) {
  std::vector<Layer> layers;
  layers.reserve(options.weights->layers.size());
  for (const LayerWeights& weights : options.weights->layers) {
    auto layer = MakeLayer(options, weights);
    if (!layer) return base::Forward(layer);
    layers.push_back(*layer);
  }
  return std::unique_ptr<HostCompute>(new HostCompute(std::move(options), std::move(layers)));
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
    }
  }
}

base::Bytes HostCompute::ScratchBytes(std::size_t num_rows, std::size_t num_used) const {
  base::Bytes most;
  const std::size_t pairs = num_rows * num_used;
  for (const Layer& layer : layers_) {
    const std::size_t row = Stride(layer.gate.vector_bytes()) +
                            (layer.shared_vectors ? 0 : Stride(layer.up.vector_bytes()));
    const std::size_t n_ff = layer.weights->n_ff();
    const std::size_t pair = (RoundUp(n_ff, kLineRows) + layer.weights->n_embd()) * sizeof(float) +
                             Stride(layer.down.vector_bytes()) +
                             n_ff / layer.down.granule() * sizeof(std::uint32_t);
    most = std::max(most, base::Bytes(row) * num_rows + base::Bytes(pair) * pairs);
  }
  return most;
}

base::Result<void> HostCompute::Begin(const ExpertBatch& batch) {
  if (batch.layer.index() >= layers_.size() ||
      layers_[batch.layer.index()].weights->n_embd() != batch.n_embd) {
    return base::Fail(base::ErrorKind::kInternal,
                      "{}: a batch for layer {} with rows of {} elements does not fit the model",
                      options_.name, batch.layer.index(), batch.n_embd);
  }
  batch_ = batch;
  const Layer& layer = this->layer();
  const std::size_t rows = batch.num_rows;
  const std::size_t pairs = rows * batch.num_used;
  const std::size_t n_ff = layer.weights->n_ff();
  bool grown = gate_rows_.Grow(rows * Stride(layer.gate.vector_bytes())) &&
               (layer.shared_vectors || up_rows_.Grow(rows * Stride(layer.up.vector_bytes()))) &&
               hidden_.Grow(pairs * Stride(n_ff * sizeof(float))) &&
               hidden_rows_.Grow(pairs * Stride(layer.down.vector_bytes())) &&
               values_.Grow(pairs * Stride(batch.n_embd * sizeof(float))) &&
               completed_.Grow(pairs * (n_ff / layer.down.granule()) * sizeof(std::uint32_t));
  try {
    groups_.Reserve(pairs, options_.weights->num_experts);
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
  layer.gate.Convert(in, gate_rows_.bytes() + row * Stride(layer.gate.vector_bytes()),
                     batch_.n_embd);
  if (layer.shared_vectors) return;
  layer.up.Convert(in, up_rows_.bytes() + row * Stride(layer.up.vector_bytes()), batch_.n_embd);
}

void HostCompute::GroupPairs() {
  const Layer& layer = this->layer();
  const std::size_t num_experts = options_.weights->num_experts;
  groups_.Build(batch_, {owned_.data() + batch_.layer.index() * num_experts, num_experts});
  const std::size_t num_owned = groups_.pairs().size();
  const std::size_t hidden_stride = Stride(layer.weights->n_ff() * sizeof(float));
  std::fill(part_pairs_.begin(), part_pairs_.end(), nullptr);
  gate_vectors_.resize(num_owned);
  up_vectors_.resize(num_owned);
  hidden_vectors_.resize(num_owned);
  for (std::size_t p = 0; p < num_owned; ++p) {
    const std::size_t pair = groups_.pairs()[p];
    const std::size_t row = pair / batch_.num_used;
    part_pairs_[pair] =
        values_.floats() + p * Stride(batch_.n_embd * sizeof(float)) / sizeof(float);
    gate_vectors_[p] = gate_rows_.bytes() + row * Stride(layer.gate.vector_bytes());
    up_vectors_[p] = layer.shared_vectors
                         ? gate_vectors_[p]
                         : up_rows_.bytes() + row * Stride(layer.up.vector_bytes());
    hidden_vectors_[p] = layer.down.takes_floats()
                             ? hidden_.bytes() + p * hidden_stride
                             : hidden_rows_.bytes() + p * Stride(layer.down.vector_bytes());
  }
  if (num_owned != 0) {
    std::memset(completed_.bytes(), 0,
                num_owned * (layer.weights->n_ff() / layer.down.granule()) * sizeof(std::uint32_t));
  }
  next_expand_.store(0, std::memory_order_relaxed);
  next_reduce_.store(0, std::memory_order_relaxed);
  num_pairs_.fetch_add(num_owned, std::memory_order_relaxed);
}

void HostCompute::Prepare(TeamThread thread) {
  if (thread.index == 0) GroupPairs();
  const std::size_t end = batch_.num_rows * (thread.index + 1) / thread.count;
  for (std::size_t row = batch_.num_rows * thread.index / thread.count; row < end; ++row) {
    if (OwnsAny(row)) ConvertRow(row);
  }
}

template <class Compute>
void HostCompute::Share(TeamThread thread, std::size_t num_rows, std::size_t row_bytes,
                        std::atomic<std::size_t>& next, const Compute& compute) {
  const auto groups = groups_.groups();
  if (groups_.pairs().size() <= kFewPairs) {
    const std::size_t lines = (num_rows + kLineRows - 1) / kLineRows;
    const std::size_t first = lines * thread.index / thread.count * kLineRows;
    const std::size_t end =
        std::min(num_rows, lines * (thread.index + 1) / thread.count * kLineRows);
    if (first >= end) return;
    for (const PairGroup& group : groups) compute(group, first, end);
    return;
  }
  const std::size_t part_rows =
      RoundUp(std::max<std::size_t>(kPartBytes / row_bytes, 1), kLineRows);
  const std::size_t parts = (num_rows + part_rows - 1) / part_rows;
  for (;;) {
    const std::size_t part = next.fetch_add(1, std::memory_order_relaxed);
    if (part >= groups.size() * parts) return;
    const std::size_t first = part % parts * part_rows;
    compute(groups[part / parts], first, std::min(num_rows, first + part_rows));
  }
}

void HostCompute::Expand(TeamThread thread) {
  const LayerWeights& weights = *layer().weights;
  Share(thread, weights.n_ff(), weights.gate.row_bytes + layer().up_row_bytes(), next_expand_,
        [this](const PairGroup& group, std::size_t first, std::size_t end) {
          ExpandRows(group, first, end);
        });
}

void HostCompute::ExpandRows(const PairGroup& group, std::size_t first, std::size_t end) {
  const std::size_t block =
      BlockRows(std::max(layer().weights->gate.row_bytes, layer().up_row_bytes()), group.size());
  for (std::size_t row = first; row < end; row += block) {
    const std::size_t num_rows = std::min(block, end - row);
    for (std::size_t pair = group.begin; pair < group.end; pair += kVectorTile) {
      ExpandTile(group, pair, std::min(kVectorTile, group.end - pair), row, num_rows);
    }
  }
  for (std::size_t pair = group.begin; pair < group.end; ++pair) CompleteHidden(pair, first, end);
}

void HostCompute::ExpandTile(const PairGroup& group, std::size_t pair, std::size_t num_pairs,
                             std::size_t first, std::size_t num_rows) {
  const Layer& layer = this->layer();
  const LayerWeights& weights = *layer.weights;
  float gate[kVectorTile * kBlockRows];
  float up[kVectorTile * kBlockRows];
  layer.gate.Multiply(layer.GateRows(group.expert) + first * weights.gate.row_bytes, num_rows,
                      gate_vectors_.data() + pair, num_pairs, gate, num_rows);
  layer.up.Multiply(layer.UpRows(group.expert) + first * layer.up_row_bytes(), num_rows,
                    up_vectors_.data() + pair, num_pairs, up, num_rows);
  Scale(weights.gate.scale(group.expert), gate, num_pairs * num_rows);
  Scale((weights.up ? *weights.up : weights.gate).scale(group.expert), up, num_pairs * num_rows);
  const std::size_t stride = Stride(weights.n_ff() * sizeof(float)) / sizeof(float);
  for (std::size_t p = 0; p < num_pairs; ++p) {
    SwiGlu(gate + p * num_rows, up + p * num_rows, hidden_.floats() + (pair + p) * stride + first,
           num_rows);
  }
}

void HostCompute::CompleteHidden(std::size_t pair, std::size_t first, std::size_t end) {
  const Layer& layer = this->layer();
  const RowKernel& down = layer.down;
  if (down.takes_floats()) return;
  const std::size_t granule = down.granule();
  const float* hidden =
      hidden_.floats() + pair * (Stride(layer.weights->n_ff() * sizeof(float)) / sizeof(float));
  std::byte* out = hidden_rows_.bytes() + pair * Stride(down.vector_bytes());
  if (granule == 1) {
    down.Convert(hidden + first, out + down.VectorBytes(first), end - first);
    return;
  }
  auto* completed = reinterpret_cast<std::uint32_t*>(completed_.bytes()) +
                    pair * (layer.weights->n_ff() / granule);
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
    down.Convert(hidden + begin, out + down.VectorBytes(begin), granule);
  }
}

void HostCompute::Reduce(TeamThread thread) {
  const LayerWeights& weights = *layer().weights;
  Share(thread, weights.n_embd(), weights.down.row_bytes, next_reduce_,
        [this](const PairGroup& group, std::size_t first, std::size_t end) {
          ReduceRows(group, first, end);
        });
}

void HostCompute::ReduceRows(const PairGroup& group, std::size_t first, std::size_t end) {
  const Layer& layer = this->layer();
  const ExpertMatrix& down = layer.weights->down;
  const std::size_t block = BlockRows(down.row_bytes, group.size());
  const std::size_t stride = Stride(batch_.n_embd * sizeof(float)) / sizeof(float);
  for (std::size_t row = first; row < end; row += block) {
    const std::size_t num_rows = std::min(block, end - row);
    layer.down.Multiply(down.expert(group.expert) + row * down.row_bytes, num_rows,
                        hidden_vectors_.data() + group.begin, group.size(),
                        values_.floats() + group.begin * stride + row, stride);
  }
  for (std::size_t pair = group.begin; pair < group.end; ++pair) {
    Scale(down.scale(group.expert), values_.floats() + pair * stride + first, end - first);
  }
}

ExpertPart HostCompute::part(std::size_t) const {
  return {.form = PartForm::kPairs, .pairs = part_pairs_.data()};
}

}  // namespace moe
