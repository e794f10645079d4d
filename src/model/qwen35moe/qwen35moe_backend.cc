#include "model/qwen35moe/qwen35moe_backend.h"

#include <algorithm>
#include <format>
#include <new>
#include <utility>

#include "base/check.h"
#include "model/map_experts.h"
#include "model/qwen35moe/attention_nodes.h"
#include "model/qwen35moe/batch_layout.h"
#include "model/qwen35moe/delta_net_nodes.h"
#include "model/qwen35moe/directory.h"

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

// What the DeltaNet layers of a slot kept.
class RecurrentCheckpoint final : public SlotCheckpoint {
 public:
  static base::Result<std::unique_ptr<RecurrentCheckpoint>> Make(std::size_t length,
                                                                 std::size_t bytes) {
    std::unique_ptr<std::byte[]> memory(new (std::nothrow) std::byte[bytes]);
    if (!memory) {
      return Fail(ErrorKind::kCapacity, "no memory for a checkpoint of {}",
                  base::FormatBytes(base::Bytes(bytes)));
    }
    std::unique_ptr<RecurrentCheckpoint> made(new RecurrentCheckpoint());
    made->length_ = length;
    made->memory_ = std::move(memory);
    made->size_ = bytes;
    return made;
  }

  std::size_t length() const override { return length_; }
  base::Bytes bytes() const override { return base::Bytes(size_); }
  std::span<std::byte> state() { return {memory_.get(), size_}; }
  std::span<const std::byte> state() const { return {memory_.get(), size_}; }

 private:
  RecurrentCheckpoint() = default;

  std::size_t length_ = 0;
  std::unique_ptr<std::byte[]> memory_;
  std::size_t size_ = 0;
};

}  // namespace

base::Result<std::unique_ptr<PlacedBackend>> LoadDense(const DenseLoadRequest& request) {
  const ContextRequest& context = request.context;
  return Qwen35MoeBackend::Load(*request.file, request.primary.handle, request.cpu.handle,
                                {.context_length = context.context,
                                 .num_slots = context.num_sequences,
                                 .max_batch_rows = context.batch_rows,
                                 .num_threads = request.num_threads,
                                 .cache_type = static_cast<ggml_type>(context.kv_type),
                                 .repack = request.repack,
                                 .packing_memory = request.packing_memory},
                                request.log, request.control);
}

base::Result<std::unique_ptr<Qwen35MoeBackend>> Qwen35MoeBackend::Load(
    const gg::GgufFile& file, ggml_backend_dev_t primary, ggml_backend_dev_t cpu,
    const BackendOptions& options, const base::Log& log, const LoadControl& control) {
  auto description = Describe(file);
  if (!description) return base::Forward(description);
  auto hparams = ReadHparams(file);
  if (!hparams) return base::Forward(hparams);
  std::unique_ptr<Qwen35MoeBackend> backend(new Qwen35MoeBackend());
  backend->hparams_ = *hparams;
  backend->expert_weights_ = MapExperts(file, *description);
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
  auto weights = Weights::Load(file, backend->hparams_, primary, cpu, options.repack, log, control);
  if (!weights) return base::Forward(weights);
  backend->weights_ = *std::move(weights);
  backend->experts_ = std::make_unique<ExpertNodes>(hparams->num_layers);
  backend->lengths_.assign(options.num_slots, 0);
  for (const ggml_backend_ptr& one : backend->backends_) {
    backend->sources_.backends.list.push_back(one.get());
  }
  if (auto made = backend->MakeState(primary, cpu, log); !made) return base::Forward(made);
  // The state is zeroed and thereby there, in what is available no more.
  auto packed = backend->weights_->Pack(options.num_threads, backend->untouched_host_bytes(),
                                        options.packing_memory, control);
  if (!packed) return base::Forward(packed);

  ggml_backend_t cpu_backend = backend->sources_.backends.cpu();
  if (auto set_abort = BackendFunction<ggml_backend_set_abort_callback_t>(
          cpu_backend, "ggml_backend_set_abort_callback")) {
    set_abort(
        cpu_backend,
        [](void* self) { return static_cast<Qwen35MoeBackend*>(self)->stop_.stop_requested(); },
        backend.get());
  }
  backend->SetThreads(options.num_threads);
  if (primary != cpu) {
    if (auto reserved = backend->ReserveGraphs(); !reserved) return base::Forward(reserved);
  }
  return backend;
}

base::Result<void> Qwen35MoeBackend::MakeState(ggml_backend_dev_t primary, ggml_backend_dev_t cpu,
                                               const base::Log& log) {
  const State::Size size = {.num_slots = options_.num_slots,
                            .cells_per_slot = RoundUp(options_.context_length, kCellStep),
                            .cache_type = options_.cache_type,
                            .for_kernels = primary == cpu && AttentionNodes::Supports(hparams_) &&
                                           DeltaNetNodes::Supports(hparams_)};
  for (ggml_backend_dev_t device : {primary, cpu}) {
    auto state = State::Make(hparams_, size, device);
    if (!state) return base::Forward(state);
    state_ = std::make_unique<State>(*std::move(state));
    sources_.hparams = &hparams_;
    sources_.weights = weights_.get();
    sources_.state = state_.get();
    sources_.experts = experts_.get();
    if (device == cpu) break;
    std::string refused;
    // One token, the shortest prompt step that is computed otherwise, and the largest step.
    for (const std::uint32_t rows : {std::uint32_t{1}, State::kInPlaceRows + 1, LargestStep()}) {
      if (!refused.empty()) break;
      refused = Graph::FirstRefusal(
          sources_, {.runs = {{0, 1, rows}}, .num_cells = size.cells_per_slot, .num_outputs = 1},
          device);
    }
    if (refused.empty()) break;
    log.Warning("{} refuses {} on the sequences' state: the state stays on the CPU",
                ggml_backend_dev_name(device), refused);
  }
  return {};
}

Qwen35MoeBackend::~Qwen35MoeBackend() {
  for (const ggml_backend_ptr& backend : backends_) ggml_backend_synchronize(backend.get());
}

base::Result<bool> Qwen35MoeBackend::KeepOnPrimary(moe::LayerId layer) {
  graphs_are_stale_ = true;
  return weights_->LoadExperts(layer);
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
  if (std::exchange(graphs_are_stale_, false)) graphs_.clear();
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
                                   .num_cells = ShapeCells(),
                                   .slot_lengths = lengths_});
  if (!layout) return base::Forward(layout);
  if (!ExpertsAreComplete()) {
    return Fail(ErrorKind::kInternal, "a batch was evaluated before experts were set");
  }
  auto graph = FindOrBuildGraph(layout->shape);
  if (!graph) return base::Forward(graph);

  logits_.resize(std::size_t{layout->shape.num_outputs} * hparams_.num_vocab);
  routing_.resize(recorder_ == nullptr ? 0 : (*graph)->routing_size());
  stop_ = std::move(stop);
  experts_->StartStep();
  base::Result<void> run =
      (*graph)->Run(rows, *layout, logits_, routing_, times_nodes_ ? &timer_ : nullptr);
  base::Result<void> experts = experts_->EndStep();
  stop_ = {};
  if (!experts) run = std::move(experts);
  if (run && recorder_ != nullptr) {
    run = recorder_->CountStep(routing_, rows.size(), hparams_.experts_per_token);
  }
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

base::Result<std::unique_ptr<SlotCheckpoint>> Qwen35MoeBackend::SaveSlot(std::uint32_t slot) {
  auto checkpoint = RecurrentCheckpoint::Make(lengths_[slot], state_->recurrent_bytes());
  if (!checkpoint) return base::Forward(checkpoint);
  state_->SaveRecurrent(slot, (*checkpoint)->state());
  return *std::move(checkpoint);
}

base::Result<void> Qwen35MoeBackend::RestoreSlot(const SlotCheckpoint& checkpoint,
                                                 std::uint32_t from, std::uint32_t to) {
  const auto& saved = static_cast<const RecurrentCheckpoint&>(checkpoint);
  const auto length = static_cast<std::uint32_t>(saved.length());
  ES_CHECK(length <= lengths_[from]);
  state_->CopyCells(from, to, length);
  state_->LoadRecurrent(to, saved.state());
  lengths_[to] = length;
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
      counters.push_back({std::format("part {}", i), compute->num_pairs(i)});
    }
  }
  return counters;
}

void Qwen35MoeBackend::TimeNodes(bool on) {
  times_nodes_ = on;
  if (on) timer_ = {};
}

std::vector<NodeTime> Qwen35MoeBackend::node_times() const { return timer_.Times(); }

base::Bytes Qwen35MoeBackend::untouched_host_bytes() const {
  return Graph::RequiredCpuBytes(sources_, LargestShape());
}

base::Bytes Qwen35MoeBackend::graph_bytes() const {
  base::Bytes total;
  for (const std::unique_ptr<Graph>& graph : graphs_) total += graph->buffer_bytes();
  return total;
}

base::Result<void> Qwen35MoeBackend::ReserveGraphs() {
  graphs_.clear();
  auto graph = Graph::Build(sources_, LargestShape());
  if (!graph) return base::Forward(graph);
  graphs_.push_back(*std::move(graph));
  return {};
}

}  // namespace model::qwen35moe
