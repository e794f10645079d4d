#include "model/qwen35moe/qwen35moe_backend.h"

#include <algorithm>
#include <utility>

#include "model/qwen35moe/batch_layout.h"

namespace model::qwen35moe {
namespace {

using base::ErrorKind;
using base::Fail;

// How many graphs are kept. A graph of many rows has large compute buffers, so fewer of those.
constexpr std::size_t kManyRows = 32;
constexpr std::size_t kSmallGraphs = 8;
constexpr std::size_t kLargeGraphs = 1;

constexpr std::uint32_t RoundUp(std::uint32_t value, std::uint32_t step) {
  return (value + step - 1) / step * step;
}

template <class Function>
Function BackendFunction(ggml_backend_t backend, const char* name) {
  ggml_backend_reg_t registry = ggml_backend_dev_backend_reg(ggml_backend_get_device(backend));
  return reinterpret_cast<Function>(ggml_backend_reg_get_proc_address(registry, name));
}

}  // namespace

base::Result<std::unique_ptr<Qwen35MoeBackend>> Qwen35MoeBackend::Load(
    const gg::GgufFile& file, const Hparams& hparams, ggml_backend_dev_t primary,
    ggml_backend_dev_t cpu, const BackendOptions& options, const base::Log& log) {
  std::unique_ptr<Qwen35MoeBackend> backend(new Qwen35MoeBackend());
  backend->hparams_ = hparams;
  backend->options_ = options;
  std::vector<ggml_backend_dev_t> devices = {primary};
  if (primary != cpu) devices.push_back(cpu);
  for (ggml_backend_dev_t device : devices) {
    ggml_backend_t opened = ggml_backend_dev_init(device, nullptr);
    if (opened == nullptr) {
      return Fail(ErrorKind::kDeviceFailure, "cannot open {}", ggml_backend_dev_name(device));
    }
    backend->backends_.emplace_back(opened);
  }
  auto weights = Weights::Load(file, backend->hparams_, primary, cpu, log);
  if (!weights) return base::Forward(weights);
  backend->weights_ = *std::move(weights);
  auto state = State::Make(backend->hparams_,
                           {.num_slots = options.num_slots,
                            .cells_per_slot = RoundUp(options.context_length, kCellStep),
                            .cache_type = options.cache_type},
                           primary);
  if (!state) return base::Forward(state);
  backend->state_ = std::make_unique<State>(*std::move(state));
  backend->experts_ = std::make_unique<ExpertNodes>(hparams.num_layers);
  backend->lengths_.assign(options.num_slots, 0);

  GraphSources& sources = backend->sources_;
  sources = {.hparams = &backend->hparams_,
             .weights = backend->weights_.get(),
             .state = backend->state_.get(),
             .experts = backend->experts_.get(),
             .backends = {}};
  for (const ggml_backend_ptr& one : backend->backends_) sources.backends.list.push_back(one.get());

  ggml_backend_t cpu_backend = sources.backends.cpu();
  if (auto set_abort = BackendFunction<ggml_backend_set_abort_callback_t>(
          cpu_backend, "ggml_backend_set_abort_callback")) {
    set_abort(
        cpu_backend,
        [](void* self) { return static_cast<Qwen35MoeBackend*>(self)->stop_.stop_requested(); },
        backend.get());
  }
  backend->SetThreads(options.num_threads);
  return backend;
}

Qwen35MoeBackend::~Qwen35MoeBackend() {
  for (const ggml_backend_ptr& backend : backends_) ggml_backend_synchronize(backend.get());
}

base::Result<std::vector<moe::LayerId>> Qwen35MoeBackend::KeepOnPrimary(
    std::span<const moe::LayerId> layers) {
  graphs_.clear();
  std::vector<moe::LayerId> refused;
  for (const moe::LayerId layer : layers) {
    base::Result<bool> loaded = weights_->LoadExperts(layer);
    if (!loaded) return base::Forward(loaded);
    if (!*loaded) refused.push_back(layer);
  }
  return refused;
}

void Qwen35MoeBackend::SetExperts(std::shared_ptr<moe::MoeExpertCompute> compute) {
  experts_->SetCompute(std::move(compute));
}

bool Qwen35MoeBackend::ExpertsAreComplete() const {
  return experts_->compute() != nullptr ||
         std::ranges::all_of(weights_->layers(),
                             [](const LayerWeights& layer) { return layer.experts.has_value(); });
}

base::Result<Graph*> Qwen35MoeBackend::FindOrBuildGraph(const GraphShape& shape) {
  const auto found = std::ranges::find_if(
      graphs_, [&](const std::unique_ptr<Graph>& graph) { return graph->shape() == shape; });
  if (found != graphs_.end()) {
    std::rotate(graphs_.begin(), found, found + 1);
    return graphs_.front().get();
  }
  // Room first: the old graph's buffers go before the new one's are made.
  const auto is_large = [](const std::unique_ptr<Graph>& graph) {
    return graph->shape().num_rows() > kManyRows;
  };
  const bool large = shape.num_rows() > kManyRows;
  std::size_t kept = 1;
  std::erase_if(graphs_, [&](const std::unique_ptr<Graph>& graph) {
    return is_large(graph) == large && ++kept > (large ? kLargeGraphs : kSmallGraphs);
  });
  auto graph = Graph::Build(sources_, shape);
  if (!graph) return base::Forward(graph);
  ++graphs_built_;
  graphs_.insert(graphs_.begin(), *std::move(graph));
  return graphs_.front().get();
}

base::Result<std::span<const float>> Qwen35MoeBackend::Evaluate(std::span<const BatchRow> rows,
                                                                std::stop_token stop) {
  auto layout = LayOutBatch(rows, {.max_rows = options_.max_batch_rows,
                                   .vocab_size = hparams_.num_vocab,
                                   .context_length = options_.context_length,
                                   .num_cells = state_->size().cells_per_slot,
                                   .slot_lengths = lengths_});
  if (!layout) return base::Forward(layout);
  if (!ExpertsAreComplete()) {
    return Fail(ErrorKind::kInternal, "a batch was evaluated before experts were set");
  }
  auto graph = FindOrBuildGraph(layout->shape);
  if (!graph) return base::Forward(graph);

  logits_.resize(std::size_t{layout->shape.num_outputs} * hparams_.num_vocab);
  stop_ = std::move(stop);
  experts_->StartStep();
  base::Result<void> run = (*graph)->Run(rows, *layout, logits_);
  base::Result<void> experts = experts_->EndStep();
  stop_ = {};
  if (!experts) run = std::move(experts);
  if (!run) {
    for (const BatchRow& row : rows) ClearSlot(row.slot);
    return base::Forward(run);
  }
  for (const BatchRow& row : rows) ++lengths_[row.slot];
  for (const LayerWeights& layer : weights_->layers()) {
    if (layer.experts) primary_pairs_ += rows.size() * hparams_.experts_per_token;
  }
  return std::span<const float>(logits_);
}

void Qwen35MoeBackend::ClearSlot(std::uint32_t slot) {
  state_->ClearSlot(slot);
  lengths_[slot] = 0;
}

base::Result<void> Qwen35MoeBackend::CopySlot(std::uint32_t from, std::uint32_t to) {
  state_->CopySlot(from, to, lengths_[from]);
  lengths_[to] = lengths_[from];
  return {};
}

void Qwen35MoeBackend::SetThreads(std::size_t count) {
  ggml_backend_t cpu = sources_.backends.cpu();
  if (auto set = BackendFunction<ggml_backend_set_n_threads_t>(cpu, "ggml_backend_set_n_threads")) {
    set(cpu, static_cast<int>(std::max<std::size_t>(count, 1)));
  }
}

std::vector<ExpertCounter> Qwen35MoeBackend::expert_counters() const {
  std::vector<ExpertCounter> counters = {{"primary", primary_pairs_}};
  if (const auto& compute = experts_->compute()) {
    for (std::size_t i = 0; i < compute->num_parts(); ++i) {
      counters.push_back({std::to_string(i), compute->num_pairs(i)});
    }
  }
  return counters;
}

base::Bytes Qwen35MoeBackend::graph_bytes() const {
  base::Bytes total;
  for (const std::unique_ptr<Graph>& graph : graphs_) total += graph->buffer_bytes();
  return total;
}

base::Result<void> Qwen35MoeBackend::ReserveGraphs() {
  const std::uint32_t rows = std::min(options_.max_batch_rows, options_.context_length);
  GraphShape shape{
      .runs = {{0, 1, rows}}, .num_cells = state_->size().cells_per_slot, .num_outputs = 1};
  auto graph = FindOrBuildGraph(shape);
  if (!graph) return base::Forward(graph);
  return {};
}

}  // namespace model::qwen35moe
