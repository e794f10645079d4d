// DeviceExperts: one layer's experts in a device's memory.
//
// A device limits the size of one tensor, and what its operations take; the experts are therefore
// cut into as few stacks as the device accepts, each with the projections of consecutive local ids.
// Immutable once uploaded. The backend must outlive it; one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/result.h"
#include "gg/handles.h"
#include "moe/compute/expert_upload.h"
#include "moe/compute/expert_weights.h"
#include "moe/target/ids.h"

namespace moe {

// Experts [first, first + count) by local id. The tensors are [count, num_rows, row_width] each.
struct DeviceStack {
  std::size_t first = 0;
  std::size_t count = 0;
  ggml_tensor* gate = nullptr;
  ggml_tensor* up = nullptr;  // nullptr when gate holds both
  ggml_tensor* down = nullptr;
};

// Memory for the tensors of a context; gg::Buffer::ForContext outside of tests.
using AllocateBuffer =
    std::function<base::Result<gg::Buffer>(const gg::Context&, ggml_backend_buffer_type_t)>;

class DeviceExperts {
 public:
  struct Request {
    std::string target;                 // for messages
    LayerId layer;                      // for messages
    const LayerWeights* weights;        // read during Upload only
    std::span<const ExpertId> experts;  // position is the local id; at least one
    std::size_t max_pairs = 1;          // of one batch
    std::size_t max_stack = SIZE_MAX;   // experts of one stack at most
    AllocateBuffer allocate = gg::Buffer::ForContext;
    UploadForm form = UploadForm::kRuns;
    std::function<void(base::Bytes)> uploaded = {};  // as UploadExperts tells it
  };

  // Copies the weights to the backend's device and waits for it. Errors: kCapacity naming target,
  // layer and bytes when the device has no room; kUnsupported naming the tensor when the device
  // cannot multiply with it even for a single expert.
  static base::Result<DeviceExperts> Upload(const gg::Backend& backend, const Request& request);

  // 2 or 3: gate, up unless gate holds both, down.
  static std::size_t NumProjections(const LayerWeights& weights) { return weights.up ? 3 : 2; }
  // Copies one projection of `expert` to where the local id `place` lies, in place of another one's
  // of the same layer.
  void CopyProjection(const LayerWeights& weights, ExpertId expert, std::size_t place,
                      std::size_t projection);

  std::span<const DeviceStack> stacks() const { return stacks_; }
  // Experts of every stack but the last.
  std::size_t stack_size() const { return stack_size_; }
  // What the tensors take on the device, its padding included.
  base::Bytes bytes() const { return buffer_.size(); }

 private:
  DeviceExperts(gg::Context context, gg::Buffer buffer, std::vector<DeviceStack> stacks)
      : context_(std::move(context)),
        buffer_(std::move(buffer)),
        stacks_(std::move(stacks)),
        stack_size_(stacks_.front().count) {}

  gg::Context context_;
  gg::Buffer buffer_;  // holds the tensors of context_
  std::vector<DeviceStack> stacks_;
  std::size_t stack_size_ = 0;
};

}  // namespace moe
