#include "moe/compute/packed_experts.h"

#include <algorithm>
#include <atomic>
#include <functional>
#include <system_error>
#include <thread>
#include <utility>

namespace moe {
namespace {

// Packed bytes between two looks at the stop token.
constexpr std::size_t kPieceBytes = 1024 * 1024;

// Where the rows of a projection lie in the file: gate and up may share a tensor.
struct Source {
  const ExpertMatrix* matrix;
  std::size_t first_row;
  std::size_t num_rows;

  const std::byte* rows(ExpertId expert) const {
    return matrix->expert(expert) + first_row * matrix->row_bytes;
  }
};

struct Sources {
  explicit Sources(const LayerWeights& layer)
      : gate{&layer.gate, 0, layer.n_ff()},
        up{layer.up ? &*layer.up : &layer.gate, layer.up ? 0 : layer.n_ff(), layer.n_ff()},
        down{&layer.down, 0, layer.n_embd()} {}

  Source gate, up, down;
};

std::size_t UnitBytes(const LayerWeights& layer) {
  return layer.gate.expert_bytes + (layer.up ? layer.up->expert_bytes : 0) +
         layer.down.expert_bytes;
}

// Nullopt when one of the projections has no packed kernel.
std::optional<PackedExperts::Layer> LayOutRun(const LayerWeights& layer) {
  std::size_t bytes = 0;
  const auto append = [&bytes](const Source& source) {
    std::optional<PackedExperts::Matrix> matrix;
    auto kernel = kernels::MatrixKernel::Make(source.matrix->type, source.matrix->row_width);
    if (!kernel) return matrix;
    matrix = PackedExperts::Matrix{*kernel, source.num_rows, bytes};
    bytes += kernel->PackedBytes(source.num_rows);
    return matrix;
  };
  const Sources sources(layer);
  const auto gate = append(sources.gate);
  const auto up = append(sources.up);
  const auto down = append(sources.down);
  if (!gate || !up || !down) return std::nullopt;
  return PackedExperts::Layer{*gate, *up, *down, bytes, {}};
}

// Packs experts in the file's order, each by whichever thread is free.
class Packing {
 public:
  Packing(const PackRequest& request, std::span<const std::optional<PackedExperts::Layer>> layers)
      : request_(request), layers_(layers), left_(layers.size()) {
    for (std::size_t l = 0; l < layers.size(); ++l) {
      if (!layers[l]) continue;
      for (std::size_t e = 0; e < request.weights->num_experts; ++e) {
        if (layers[l]->runs[e] == nullptr) continue;
        units_.push_back({LayerId(l), ExpertId(e)});
        ++left_[l];
        total_ += base::Bytes(UnitBytes(request.weights->layers[l]));
      }
    }
  }

  base::Result<void> Run() {
    std::vector<std::jthread> threads;
    const std::size_t count = std::min(request_.num_threads, units_.size());
    try {
      for (std::size_t t = 1; t < count; ++t) threads.emplace_back([this] { PackUnits(false); });
    } catch (const std::system_error&) {  // those that started, and this one, do the work
    }
    PackUnits(true);
    threads.clear();
    if (request_.stop.stop_requested()) {
      return base::Fail(base::ErrorKind::kCancelled, "packing experts was interrupted");
    }
    if (request_.progress && !units_.empty()) request_.progress(total_, total_);
    return {};
  }

 private:
  struct Unit {
    LayerId layer;
    ExpertId expert;
  };

  void PackUnits(bool reports) {
    while (!request_.stop.stop_requested()) {
      const std::size_t at = next_.fetch_add(1, std::memory_order_relaxed);
      if (at >= units_.size()) return;
      if (!PackUnit(units_[at])) return;
      if (reports && request_.progress) {
        request_.progress(base::Bytes(done_.load(std::memory_order_relaxed)), total_);
      }
    }
  }

  // False when it was stopped.
  bool PackUnit(const Unit& unit) {
    const PackedExperts::Layer& layer = *layers_[unit.layer.index()];
    const LayerWeights& weights = request_.weights->layers[unit.layer.index()];
    // Our own memory, const to everybody else.
    auto* run = const_cast<std::byte*>(layer.runs[unit.expert.index()]);
    const auto pack = [&](const Source& source, const PackedExperts::Matrix& matrix) {
      const std::size_t strips = kernels::MatrixKernel::NumStrips(source.num_rows);
      const std::size_t step = std::max<std::size_t>(1, kPieceBytes / matrix.kernel.strip_bytes());
      for (std::size_t first = 0; first < strips; first += step) {
        if (request_.stop.stop_requested()) return false;
        matrix.kernel.Pack(source.rows(unit.expert), source.num_rows, first,
                           std::min(strips, first + step), run + matrix.offset);
      }
      return true;
    };
    const Sources sources(weights);
    if (!pack(sources.gate, layer.gate) || !pack(sources.up, layer.up) ||
        !pack(sources.down, layer.down)) {
      return false;
    }
    done_.fetch_add(UnitBytes(weights), std::memory_order_relaxed);
    if (request_.release) request_.release(unit.layer, unit.expert.index(), 1);
    if (left_[unit.layer.index()].fetch_sub(1, std::memory_order_acq_rel) == 1) {
      ReleaseRuns(unit.layer, layer);
    }
    return true;
  }

  // Pages that neighbours share.
  void ReleaseRuns(LayerId id, const PackedExperts::Layer& layer) const {
    if (!request_.release) return;
    for (std::size_t first = 0; first < layer.runs.size(); ++first) {
      std::size_t end = first;
      while (end < layer.runs.size() && layer.runs[end] != nullptr) ++end;
      if (end - first > 1) request_.release(id, first, end - first);
      first = end;
    }
  }

  const PackRequest& request_;
  std::span<const std::optional<PackedExperts::Layer>> layers_;
  std::vector<Unit> units_;
  std::vector<std::atomic<std::size_t>> left_;  // [num_layers] units to pack
  base::Bytes total_;
  std::atomic<std::size_t> next_ = 0;
  std::atomic<std::uint64_t> done_ = 0;
};

}  // namespace

std::optional<base::Bytes> PackedExperts::RunBytes(const LayerWeights& layer) {
  const auto packed = LayOutRun(layer);
  if (!packed) return std::nullopt;
  return base::Bytes(packed->run_bytes);
}

base::Result<void> PackedExperts::LayOut(const PackRequest& request) {
  const std::size_t num_experts = request.weights->num_experts;
  layers_.resize(request.weights->layers.size());
  for (std::size_t l = 0; l < layers_.size(); ++l) {
    const LayerWeights& weights = request.weights->layers[l];
    if (auto ok = CheckLayerWeights(weights, num_experts); !ok) return ok;
    const auto owned = request.owned.subspan(l * num_experts, num_experts);
    const auto count = static_cast<std::size_t>(std::ranges::count(owned, 1));
    if (count == 0) continue;
    layers_[l] = LayOutRun(weights);
    if (layers_[l]) bytes_ += base::Bytes(layers_[l]->run_bytes) * count;
  }
  return {};
}

base::Result<void> PackedExperts::Allocate(const PackRequest& request) {
  if (bytes_ == base::Bytes()) return {};
  auto memory = request.allocate(bytes_);
  if (!memory) return base::Forward(memory);
  memory_ = *std::move(memory);
  const std::byte* next = memory_.data();
  const std::size_t num_experts = request.weights->num_experts;
  for (std::size_t l = 0; l < layers_.size(); ++l) {
    if (!layers_[l]) continue;
    layers_[l]->runs.assign(num_experts, nullptr);
    for (std::size_t e = 0; e < num_experts; ++e) {
      if (request.owned[l * num_experts + e] == 0) continue;
      layers_[l]->runs[e] = next;
      next += layers_[l]->run_bytes;
    }
  }
  return {};
}

base::Result<std::shared_ptr<const PackedExperts>> PackedExperts::Make(const PackRequest& request) {
  std::shared_ptr<PackedExperts> packed(new PackedExperts);
  if (auto laid_out = packed->LayOut(request); !laid_out) return base::Forward(laid_out);
  if (auto allocated = packed->Allocate(request); !allocated) return base::Forward(allocated);
  if (auto done = Packing(request, packed->layers_).Run(); !done) return base::Forward(done);
  return packed;
}

PackedExperts::Copies PackedExperts::CopiesOf(const std::shared_ptr<const PackedExperts>& packed) {
  return packed->joined_.empty() ? Copies{packed} : packed->joined_;
}

bool PackedExperts::Holds(const std::byte* run) const {
  return !std::less<>()(run, memory_.data()) && std::less<>()(run, memory_.data() + bytes_.count());
}

std::shared_ptr<const PackedExperts> PackedExperts::Join(
    std::shared_ptr<const PackedExperts> first, std::shared_ptr<const PackedExperts> second) {
  std::shared_ptr<PackedExperts> joined(new PackedExperts);
  joined->layers_ = first->layers_;
  joined->bytes_ = first->bytes_ + second->bytes_;
  for (std::size_t l = 0; l < joined->layers_.size(); ++l) {
    std::optional<Layer>& layer = joined->layers_[l];
    const std::optional<Layer>& more = second->layers_[l];
    if (!layer) {
      layer = more;
    } else if (more) {
      for (std::size_t e = 0; e < layer->runs.size(); ++e) {
        if (more->runs[e] != nullptr) layer->runs[e] = more->runs[e];
      }
    }
  }
  joined->joined_ = CopiesOf(first);
  for (auto& copy : CopiesOf(second)) joined->joined_.push_back(std::move(copy));
  return joined;
}

std::shared_ptr<const PackedExperts> PackedExperts::Keep(
    std::shared_ptr<const PackedExperts> packed, std::span<const std::uint8_t> owned) {
  const std::size_t num_experts = owned.size() / packed->layers_.size();
  const auto owns_any = [&](const PackedExperts& copy) {
    for (std::size_t at = 0; at < owned.size(); ++at) {
      const std::optional<Layer>& layer = packed->layers_[at / num_experts];
      if (owned[at] == 0 || !layer) continue;
      const std::byte* run = layer->runs[at % num_experts];
      if (run != nullptr && copy.Holds(run)) return true;
    }
    return false;
  };
  Copies kept = CopiesOf(packed);
  const std::size_t before = kept.size();
  std::erase_if(kept, [&](const auto& copy) { return !owns_any(*copy); });
  if (kept.size() == before) return packed;
  if (kept.empty()) return nullptr;
  std::shared_ptr<PackedExperts> rest(new PackedExperts);
  rest->layers_ = packed->layers_;
  for (const auto& copy : kept) rest->bytes_ += copy->bytes_;
  for (std::optional<Layer>& layer : rest->layers_) {
    if (!layer) continue;
    for (const std::byte*& run : layer->runs) {
      const auto holds = [run](const auto& copy) { return copy->Holds(run); };
      if (run != nullptr && std::ranges::none_of(kept, holds)) run = nullptr;
    }
    if (std::ranges::all_of(layer->runs, [](auto* run) { return run == nullptr; })) layer.reset();
  }
  const auto same_runs = [](const std::optional<Layer>& a, const std::optional<Layer>& b) {
    return a.has_value() == b.has_value() && (!a || a->runs == b->runs);
  };
  if (kept.size() == 1 && std::ranges::equal(rest->layers_, kept.front()->layers_, same_runs)) {
    return kept.front();
  }
  rest->joined_ = std::move(kept);
  return rest;
}

std::shared_ptr<const PackedExperts> PackedExperts::Only(
    std::shared_ptr<const PackedExperts> packed, std::span<const std::uint8_t> owned) {
  packed = Keep(std::move(packed), owned);
  if (packed == nullptr) return nullptr;
  std::shared_ptr<PackedExperts> only(new PackedExperts);
  only->layers_ = packed->layers_;
  only->bytes_ = packed->bytes_;
  only->joined_ = CopiesOf(packed);
  const std::size_t num_experts = owned.size() / packed->layers_.size();
  for (std::size_t l = 0; l < only->layers_.size(); ++l) {
    std::optional<Layer>& layer = only->layers_[l];
    if (!layer) continue;
    for (std::size_t e = 0; e < num_experts; ++e) {
      if (owned[l * num_experts + e] == 0) layer->runs[e] = nullptr;
    }
    if (std::ranges::all_of(layer->runs, [](auto* run) { return run == nullptr; })) layer.reset();
  }
  return only;
}

void PackedExperts::GiveBackAllBut(const PackedExperts* left) const {
  for (std::size_t l = 0; l < layers_.size(); ++l) {
    if (!layers_[l]) continue;
    const Layer* still = left != nullptr ? left->layer(LayerId(l)) : nullptr;
    for (std::size_t e = 0; e < layers_[l]->runs.size(); ++e) {
      const std::byte* run = layers_[l]->runs[e];
      if (run == nullptr || (still != nullptr && still->runs[e] != nullptr)) continue;
      kernels::PackedMemory::GiveBack(run, base::Bytes(layers_[l]->run_bytes));
    }
  }
}

}  // namespace moe
