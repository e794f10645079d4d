// One graph: the whole forward pass for one shape of batch, built once and run many times.
//
// Everything that differs between two steps of one shape (tokens, positions, cache cells, masks) is
// an input. The DeltaNet and attention state of the shape's slots is read and written in place. The
// graph owns its scheduler and with it its compute buffers. One thread at a time.
#pragma once

#include <ggml-cpp.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "model/backend.h"
#include "model/qwen35moe/batch_layout.h"
#include "model/qwen35moe/expert_nodes.h"
#include "model/qwen35moe/hparams.h"
#include "model/qwen35moe/node_timer.h"
#include "model/qwen35moe/state.h"
#include "model/qwen35moe/weights.h"

namespace model::qwen35moe {

// The backends a graph runs on: the primary first, the CPU last; one entry when they are the same.
struct GraphBackends {
  std::vector<ggml_backend_t> list;

  ggml_backend_t primary() const { return list.front(); }
  ggml_backend_t cpu() const { return list.back(); }
};

// What all graphs of a model have in common. Everything must outlive the graphs.
struct GraphSources {
  const Hparams* hparams = nullptr;
  const Weights* weights = nullptr;
  const State* state = nullptr;
  ExpertNodes* experts = nullptr;
  GraphBackends backends;
};

class Graph {
 public:
  // Errors: kCapacity when the compute buffers do not fit.
  static base::Result<std::unique_ptr<Graph>> Build(const GraphSources& sources,
                                                    const GraphShape& shape);

  // The first operation on the state that `device` refuses in a graph of this shape (its name in
  // ggml), or empty. ggml aborts when such a state lies on that device.
  static std::string FirstRefusal(const GraphSources& sources, const GraphShape& shape,
                                  ggml_backend_dev_t device);

  // Compute buffers in the CPU backend's memory that a graph of this shape takes. Allocates none.
  static base::Bytes RequiredCpuBytes(const GraphSources& sources, const GraphShape& shape);

  // Runs one batch of this graph's shape. `rows` is the batch, `layout` how it lies in the graph,
  // `first_positions` [num_slots] the length of each slot before it. Writes the logits
  // [num_outputs, n_vocab] to `logits` and, unless `routing` is empty, the routers' choices to
  // it: routing_size() ids in a line for each layer, which begins with [rows in the layout's order,
  // experts_per_token] ids. With a timer every node is computed by itself. Errors: kCancelled when
  // the CPU backend's abort callback said so, kDeviceFailure.
  base::Result<void> Run(std::span<const BatchRow> rows, const BatchLayout& layout,
                         std::span<float> logits, std::span<std::int32_t> routing = {},
                         NodeTimer* timer = nullptr);

  const GraphShape& shape() const { return shape_; }
  // Ids that Run writes of the routers' choices, gaps included.
  std::size_t routing_size() const { return static_cast<std::size_t>(ggml_nelements(routing_)); }
  // Compute buffers of all backends together.
  base::Bytes buffer_bytes() const;
  // Pieces that the scheduler cut the graph into; 1 when everything runs on one backend.
  int num_splits() const { return ggml_backend_sched_get_n_splits(scheduler_.get()); }

  // The tensors that Run fills. Without num_cells in the shape cells and masks are absent.
  struct Inputs {
    ggml_tensor* tokens = nullptr;       // [rows]
    ggml_tensor* positions = nullptr;    // [4, rows]: one line a rotary section
    ggml_tensor* key_cells = nullptr;    // [rows]: row of LayerState::keys
    ggml_tensor* value_cells = nullptr;  // [rows, width]: element of LayerState::values
    ggml_tensor* outputs = nullptr;      // [num_outputs]: rows with logits
    std::vector<ggml_tensor*> masks;     // a run: [slots, 1, rows_per_slot, num_cells], 0 or -inf
  };

 private:
  Graph() = default;
  // Nodes that must run on one backend whatever the scheduler thinks.
  struct Pinned {
    std::vector<ggml_tensor*> on_cpu;
    std::vector<ggml_tensor*> on_primary;
  };
  // Makes the nodes, without memory.
  Pinned MakeNodes(const GraphSources& sources, const GraphShape& shape);
  // Makes the nodes and the scheduler.
  void Prepare(const GraphSources& sources, const GraphShape& shape);
  void SetInputs(std::span<const BatchRow> rows, const BatchLayout& layout);
  void SetCells(std::span<const BatchRow> rows, const BatchLayout& layout);

  std::vector<std::shared_ptr<const void>> kept_;  // nodes refer to it
  ggml_backend_sched_ptr scheduler_;
  ggml_context_ptr context_;
  ggml_cgraph* graph_ = nullptr;  // in context_
  GraphShape shape_;
  Inputs inputs_;
  ggml_tensor* logits_ = nullptr;   // absent without outputs
  ggml_tensor* routing_ = nullptr;  // [num_layers, line of ids], on the primary
  std::int64_t cells_per_slot_ = 0;
  std::int64_t cache_width_ = 0;
};

}  // namespace model::qwen35moe
