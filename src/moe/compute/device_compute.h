// DeviceCompute: the experts that a device of this process owns.
//
// Their weights are copied to the device layer by layer (LoadLayer). Begin hands the rows of a
// batch to a backend instance of its own and returns while the device works; Finish waits and reads
// one weighted sum per row. Only owned pairs are computed. Graphs are built once per shape and
// layer (device_batch.h bounds the shapes) and run from then on.
//
// Threads: as MoeExpertCompute says; LoadLayer and SetRuntime between batches, by the thread that
// calls Begin. num_pairs() from any thread.
#pragma once

#include <atomic>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/result.h"
#include "gg/devices.h"
#include "gg/handles.h"
#include "moe/compute/aligned_buffer.h"
#include "moe/compute/device_batch.h"
#include "moe/compute/device_experts.h"
#include "moe/compute/device_graph.h"
#include "moe/compute/expert_compute.h"
#include "moe/compute/expert_weights.h"
#include "moe/runtime/runtime.h"

namespace moe {

struct DeviceComputeOptions {
  std::string name = {};                                   // the target's, for messages
  gg::Device device = {};                                  // of gg::DiscoverDevices
  std::shared_ptr<const ExpertWeights> weights = nullptr;  // of every layer; read by LoadLayer
  // Whose units it computes: `target`'s in `runtime`. Without a runtime every unit.
  std::shared_ptr<const ExpertSplitRuntime> runtime = nullptr;
  TargetId target = {};
  std::size_t num_used = 1;    // slots of a row, in every batch
  std::size_t max_rows = 512;  // rows of one launch; larger batches take several
  // Experts of one stack at most, for a device that accepts larger ones than it can compute.
  std::size_t max_stack = SIZE_MAX;
  AllocateBuffer allocate = gg::Buffer::ForContext;
  UploadForm upload = UploadForm::kRuns;  // how LoadLayer sends weights
};

// Memory on the device that batches need beside the weights, for planning: what scratch_bytes()
// will be when every layer is loaded. Allocates nothing there. Errors: kInternal when the host is
// out of memory.
base::Result<base::Bytes> MeasureDeviceScratch(const gg::Device& device,
                                               const ExpertWeights& weights, std::size_t num_used,
                                               std::size_t max_rows);

class DeviceCompute final : public MoeExpertCompute {
 public:
  // Opens the device; loads nothing. Errors: kDeviceFailure naming the device; kCorruptModel naming
  // the tensor that does not fit its layer.
  static base::Result<std::unique_ptr<DeviceCompute>> Make(DeviceComputeOptions options);

  // Waits for work in flight.
  ~DeviceCompute() override;

  // Copies the layer's owned experts to the device, unless they are there already. Errors:
  // kCapacity naming target and bytes when the device has no room for them or for the scratch
  // memory of a batch; kUnsupported naming the tensor or operation that the device refuses;
  // kDeviceFailure. After an error the layer is not loaded and the others are as they were: the
  // caller may give its units to other targets (SetRuntime) and go on.
  // `uploaded` (may be empty) is told the bytes of each piece that was sent.
  base::Result<void> LoadLayer(LayerId layer,
                               const std::function<void(base::Bytes)>& uploaded = {});

  // Another plan for the same model. Layers that hold the weights of all of their owned experts
  // stay as they are; the others are unloaded and must be loaded again.
  void SetRuntime(std::shared_ptr<const ExpertSplitRuntime> runtime);
  // Unloads layers that also hold weights of experts that are not owned.
  void UnloadSurplus();
  // Copies one more projection of `expert` to where the layer holds weights of an expert that is
  // not owned; true when it has all of them, after which a plan may give it the expert. Between
  // batches. Errors: kInternal when the layer has no such place; kDeviceFailure.
  base::Result<bool> FillVacancy(LayerId layer, ExpertId expert);

  // Its weights on the device, for graphs that compute a layer on this device entirely. Empty when
  // not loaded. Valid until the layer is unloaded.
  std::span<const DeviceStack> stacks(LayerId layer) const;
  base::Bytes weight_bytes() const;
  // Memory on the device that a batch needs beside the weights.
  base::Bytes scratch_bytes() const;
  // Graphs built since it was made.
  std::size_t num_graphs() const { return num_graphs_; }

  // Errors: kInternal when the batch does not fit the model or its layer is not loaded;
  // kDeviceFailure when the device refuses work; kCapacity.
  base::Result<void> Begin(const ExpertBatch& batch) override;
  void Prepare(TeamThread) override {}
  void Expand(TeamThread) override {}
  void Reduce(TeamThread) override {}
  base::Result<void> Finish() override;
  ExpertPart part(std::size_t index) const override;
  std::size_t num_parts() const override { return 1; }
  std::uint64_t num_pairs(std::size_t) const override {
    return num_pairs_.load(std::memory_order_relaxed);
  }

 private:
  struct Layer {
    std::vector<ExpertId> owned;       // ascending
    std::vector<std::int32_t> locals;  // [num_experts]: place in the stacks; negative: not owned
    std::optional<DeviceExperts> loaded;
    // Whose weights lie at each place; nobody's while they are replaced. Empty when not loaded.
    std::vector<std::optional<ExpertId>> places;
  };
  // An expert that replaces another one.
  struct Filling {
    LayerId layer;
    ExpertId expert;
    std::size_t place = 0;
    std::size_t num_copied = 0;  // projections
  };
  struct GraphKey {
    std::size_t layer = 0;
    std::size_t stack = 0;
    std::size_t num_pairs = 0;
    std::size_t num_rows = 0;
    friend auto operator<=>(const GraphKey&, const GraphKey&) = default;
  };

  DeviceCompute(DeviceComputeOptions options, gg::Backend backend);

  std::vector<ExpertId> OwnedExperts(LayerId layer) const;
  void Unload(LayerId layer);
  std::optional<std::size_t> FindVacancy(const Layer& layer) const;
  // Grows the scratch memory to what the largest batch of this layer needs.
  base::Result<void> ReserveScratch(LayerId layer, const DeviceStack& stack);
  base::Result<DeviceGraph*> Graph(const DeviceLaunch& launch);
  base::Result<void> Start(const DeviceLaunch& launch);
  base::Result<void> Collect(const DeviceLaunch& launch);
  // What a driver throws becomes kDeviceFailure.
  template <class Work>
  base::Result<void> Guard(const Work& work) const;

  DeviceComputeOptions options_;
  std::vector<Layer> layers_;
  std::optional<Filling> filling_;

  // Destroyed in reverse: graphs, scratch, weights (in layers_, by the destructor), backend.
  gg::Backend backend_;
  ggml_gallocr_ptr scratch_;
  std::map<GraphKey, DeviceGraph> graphs_;
  std::size_t num_graphs_ = 0;

  // Of the current batch.
  ExpertBatch batch_;
  DeviceBatch device_batch_;
  DeviceGraph* running_ = nullptr;
  bool covers_all_rows_ = false;   // one launch with every row in order: read straight into sums_
  AlignedBuffer sums_;             // [num_rows, n_embd]
  std::vector<std::byte> inputs_;  // of the launch in flight, as they lie on the device
  std::vector<float> read_;        // sums of a launch
  std::atomic<std::uint64_t> num_pairs_ = 0;
};

}  // namespace moe
