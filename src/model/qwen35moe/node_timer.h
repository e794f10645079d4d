// Times the nodes of graphs one by one.
//
// A scheduler that has a timer computes every node by itself and waits for it, so what overlaps
// otherwise is counted apart. One thread at a time.
#pragma once

#include <ggml-backend.h>

#include <chrono>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "model/backend.h"

namespace model::qwen35moe {

class NodeTimer {
 public:
  // `scheduler` reports to this object, which must outlive its next computation; Detach ends that.
  void Attach(ggml_backend_sched_t scheduler);
  static void Detach(ggml_backend_sched_t scheduler);

  // The longest first.
  std::vector<NodeTime> Times() const;

 private:
  static bool OnNode(ggml_tensor* node, bool ask, void* self);

  std::chrono::steady_clock::time_point start_;  // of the node that runs now
  std::unordered_map<std::string, NodeTime> times_;
};

// A weight's name without the layer's number: ffn_gate_inp of blk.3.ffn_gate_inp.weight.
std::string WeightKind(std::string_view name);

// What a node does: its operation and, of a weight among its sources, the name without the layer; a
// custom node's own name.
std::string NodeKind(const ggml_tensor* node);

}  // namespace model::qwen35moe
