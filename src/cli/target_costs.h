// How fast the targets of a list are: assumed, remembered from an earlier run, or measured now. One
// thread.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "base/result.h"
#include "cli/command.h"
#include "gg/devices.h"
#include "gg/gguf_file.h"
#include "model/family.h"
#include "moe/compute/repack.h"
#include "moe/plan/cost_model.h"
#include "moe/target/assumed_target.h"
#include "moe/target/target_config.h"

namespace cli {

struct CostRequest {
  const gg::GgufFile* file = nullptr;
  const model::ModelDescription* model = nullptr;
  const moe::ExpertSplitTargetConfig* config = nullptr;
  std::span<const gg::Device> devices;  // of this machine
  // [config->size()]; targets that may own nothing are not measured.
  std::span<const std::optional<base::Bytes>> capacities;
  const std::vector<moe::AssumedTarget>* assumed = nullptr;
  std::uint32_t threads = 0;  // of the CPU; 0 is one a core
  std::uint32_t prompt_rows = 512;
  moe::Repack repack = moe::Repack::kAuto;
};

// What an assumed target is taken for beside its bandwidth: how many times more weights it computes
// in a prompt's batch, where a weight that was read serves many rows, and what a layer costs it.
inline constexpr double kAssumedDeviceReuse = 20;
inline constexpr double kAssumedCpuReuse = 5;
inline constexpr double kAssumedLayerSeconds = 50e-6;

// Logs what it measures. Errors: kInvalidInput naming a target that is neither here nor assumed,
// with the remedy; those of moe::MeasureSpeed.
base::Result<moe::CostModel> TargetCosts(const Session& session, const CostRequest& request);

}  // namespace cli
