// DeviceGraph: the experts of one stack as a ggml graph of one fixed shape.
//
// Built once, run for every batch that is padded to its shape (device_batch.h). Its tensors lie in
// scratch memory that the graphs of a device share, so one of them runs at a time. One thread.
#pragma once

#include <ggml-cpp.h>

#include <cstddef>

#include "base/result.h"
#include "gg/handles.h"
#include "moe/compute/device_experts.h"

namespace moe {

struct DeviceGraphShape {
  std::size_t n_embd = 0;
  std::size_t num_used = 0;
  std::size_t num_pairs = 0;  // padded
  std::size_t num_rows = 0;   // padded
  bool scales = false;        // gate and up outputs have factors
};

class DeviceGraph {
 public:
  // Errors: kInternal when the host is out of memory.
  static base::Result<DeviceGraph> Build(const DeviceStack& stack, const DeviceGraphShape& shape);

  // The first node that the device refuses, or nullptr.
  const ggml_tensor* Unsupported(ggml_backend_dev_t device) const;

  ggml_cgraph* graph() const { return graph_; }

  // All inputs in one, so that they travel to the device at once; `x` is its end.
  ggml_tensor* inputs = nullptr;
  // Views of it, at view_offs; those a shape does not need are nullptr.
  ggml_tensor* x = nullptr;             // [num_rows, n_embd] floats
  ggml_tensor* pair_rows = nullptr;     // [num_pairs]; absent for one row
  ggml_tensor* pair_locals = nullptr;   // [num_pairs]
  ggml_tensor* slot_pairs = nullptr;    // [num_rows * num_used]
  ggml_tensor* slot_weights = nullptr;  // [num_rows * num_used]
  ggml_tensor* gate_scales = nullptr;   // [num_pairs]
  ggml_tensor* up_scales = nullptr;     // [num_pairs]
  // Output: [num_rows, n_embd] weighted sums.
  ggml_tensor* sums = nullptr;

 private:
  explicit DeviceGraph(gg::Context context) : context_(std::move(context)) {}

  void MakeInputs(const DeviceStack& stack, const DeviceGraphShape& shape);
  ggml_tensor* Hidden(const DeviceStack& stack, const DeviceGraphShape& shape, ggml_tensor* in,
                      ggml_tensor* ids);

  gg::Context context_;
  ggml_cgraph* graph_ = nullptr;  // inside context_
};

}  // namespace moe
