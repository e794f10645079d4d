// PlacedBackend: what the composition root needs of a family's backend beside ModelBackend.
//
// A backend is loaded in two steps: first the dense part on the primary (ModelFamily::load), then
// the routed experts where the plan puts them (moe::LoadExperts), which SetExperts hands in. The
// engine and everything above it see a ModelBackend only. Threads as ModelBackend.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <stop_token>

#include "base/bytes.h"
#include "base/log.h"
#include "base/result.h"
#include "gg/devices.h"
#include "gg/gguf_file.h"
#include "model/backend.h"
#include "model/family.h"
#include "moe/compute/expert_compute.h"
#include "moe/compute/expert_weights.h"
#include "moe/compute/repack.h"
#include "moe/profile/routing_recorder.h"
#include "moe/target/ids.h"

namespace model {

class PlacedBackend : public ModelBackend {
 public:
  // Loads all experts of `layer` into the primary's own graph, which then computes the layer.
  // False, with nothing changed but a warning, when the primary has no room for them or refuses
  // them. Errors: kCorruptModel.
  virtual base::Result<bool> KeepOnPrimary(moe::LayerId layer) = 0;
  // Computes the experts of all other layers from the next Evaluate on; not while one runs.
  virtual void SetExperts(std::shared_ptr<moe::MoeExpertCompute> compute) = 0;
  // The experts in the mapped file, with the file's scales.
  virtual const std::shared_ptr<const moe::ExpertWeights>& expert_weights() const = 0;
  // Host memory that the largest step computes in and that is not there before such a step ran.
  virtual base::Bytes untouched_host_bytes() const = 0;
  // Tells `recorder` which experts the routers select for every row of each Evaluate that succeeds,
  // from the next one on, wherever the experts are computed; nullptr ends that. `recorder` is for
  // this model and outlives the recording. Evaluate then also fails, with the slots cleared, on
  // what RoutingRecorder::CountStep refuses.
  virtual void RecordRouting(moe::RoutingRecorder* recorder) = 0;
  // (row, slot) pairs computed in the primary's own graph so far. Any thread.
  virtual std::uint64_t primary_pairs() const = 0;
};

// Watches and ends the loading of the dense part.
struct LoadControl {
  // Bytes of the dense part, as the file has them, that are copied to the primary or packed for the
  // CPU by now, of those that shall be. Called often, on the loading thread; may be empty.
  std::function<void(base::Bytes done, base::Bytes total)> progress;
  std::stop_token stop;
};

struct DenseLoadRequest {
  const gg::GgufFile* file = nullptr;  // outlives the backend; described by the same family
  gg::Device primary;                  // runs the dense part; may be the CPU
  gg::Device cpu;
  ContextRequest context;
  std::size_t num_threads = 1;
  moe::Repack repack = moe::Repack::kAuto;  // of the matrices that the CPU computes with
  moe::PackingMemory packing_memory;        // seam
  base::Log log;
  LoadControl control;
};

}  // namespace model
