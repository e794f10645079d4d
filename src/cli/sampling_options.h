// The sampling settings on the command line. Main thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "cli/command.h"
#include "model/text/sampler.h"

namespace cli {

struct SamplingOptions {
  model::SamplingSettings settings;       // complete after ReadSettings
  std::int64_t seed = -1;                 // -1: another one each time
  std::vector<std::string> logit_biases;  // TOKEN+BIAS or TOKEN-BIAS
  std::string grammar_file;
};

// The flags, named as llama.cpp names them.
void AddSamplingOptions(CLI::App& app, SamplingOptions& options);

// The settings that the flags ask for. Errors: kInvalidInput for an unreadable grammar file, a
// malformed bias, and those of model::CheckSettings.
base::Result<model::SamplingSettings> ReadSettings(const SamplingOptions& options);

}  // namespace cli
