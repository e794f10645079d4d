// HostedExperts: what a worker process does with its connection: it loads the units it is told to
// own, computes batches of them and writes the results into the shared memory.
//
// A CPU computes on a team of threads of its own and returns one vector per pair, so that the bit
// rule holds across processes; a device returns sums. What two orders have in common stays loaded.
// One thread at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "base/log.h"
#include "gg/devices.h"
#include "gg/gguf_file.h"
#include "moe/compute/compute_team.h"
#include "moe/compute/device_compute.h"
#include "moe/compute/expert_compute.h"
#include "moe/compute/expert_upload.h"
#include "moe/compute/expert_weights.h"
#include "moe/compute/host_compute.h"
#include "moe/compute/packed_experts.h"
#include "moe/ipc/worker_loop.h"
#include "moe/materialize/expert_stacks.h"
#include "moe/plan/model_shape.h"
#include "moe/runtime/runtime.h"

namespace moe {

struct HostedExpertsOptions {
  std::string target;  // "cpu", "vulkan:0"
  gg::Device device;   // that computes
  // Whose memory packed units are taken from; the process is bound to its CPUs by whoever made it.
  std::optional<std::uint32_t> numa_node;
  const ModelShape* shape = nullptr;  // outlives this, as do the next two
  const ExpertStacks* stacks = nullptr;
  const gg::GgufFile* file = nullptr;            // for giving pages back; may be nullptr
  std::shared_ptr<const ExpertWeights> weights;  // in the mapping, which outlives this
  UploadForm upload = UploadForm::kRuns;         // to a device
  base::Log log;
};

class HostedExperts final : public ipc::WorkerService {
 public:
  explicit HostedExperts(HostedExpertsOptions options) : options_(std::move(options)) {}

  ipc::Welcome Describe() override;
  base::Result<base::Bytes> Load(const ipc::LoadOrder& order,
                                 const std::function<void(ipc::LoadProgress)>& progress,
                                 std::stop_token stop) override;
  base::Result<std::uint64_t> Compute(const ipc::BatchOrder& batch,
                                      const ipc::SharedRows& rows) override;
  void Unload() override;

 private:
  using Progress = std::function<void(ipc::LoadProgress)>;

  base::Result<void> CheckOrder(const ipc::LoadOrder& order) const;
  // Whether what is loaded can become what the order wants.
  bool Continues(const ipc::LoadOrder& order) const;
  // `owned` as the lookup of one target.
  base::Result<std::shared_ptr<const ExpertSplitRuntime>> RuntimeOf(
      std::span<const std::uint8_t> owned) const;
  base::Result<std::shared_ptr<const PackedExperts>> Pack(const ipc::LoadOrder& order,
                                                          const Progress& progress,
                                                          const std::stop_token& stop) const;
  // Lets experts that are new take the places of those that go.
  base::Result<void> ReplaceOnDevice(const ipc::LoadOrder& order);
  base::Result<void> LoadHost(const ipc::LoadOrder& order, const Progress& progress,
                              const std::stop_token& stop);
  base::Result<void> LoadDevice(const ipc::LoadOrder& order, const Progress& progress,
                                const std::stop_token& stop);
  base::Bytes OwnedBytes(const ipc::LoadOrder& order) const;
  void ReleasePages(LayerId layer) const;
  base::Result<ExpertBatch> TakeBatch(const ipc::BatchOrder& batch, const ipc::SharedRows& rows);

  HostedExpertsOptions options_;
  std::shared_ptr<const ExpertSplitRuntime> runtime_;
  ipc::LoadOrder order_;  // that is fulfilled, when there is compute_
  std::shared_ptr<const PackedExperts> packed_;
  std::unique_ptr<MoeExpertCompute> compute_;
  HostCompute* host_ = nullptr;      // compute_, on a CPU
  DeviceCompute* device_ = nullptr;  // compute_, on a device
  std::optional<ComputeTeam> team_;
  // Copies: what lies in the shared memory may change while it is used.
  std::vector<std::int32_t> ids_;
  std::vector<float> weights_;
};

}  // namespace moe
