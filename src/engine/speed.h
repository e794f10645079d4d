// How fast a backend computes prompts and generates tokens.
//
// What is fed are random tokens of the vocabulary, the same for the same seed: a speed does not
// depend on what a text means, but a router that always sees the same token would. Call from the
// inference thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <stop_token>
#include <vector>

#include "base/result.h"
#include "model/backend.h"

namespace engine {

struct SpeedRequest {
  std::size_t prompt_tokens = 512;  // of one prompt; 0 measures no prompts
  std::size_t decode_tokens = 64;   // of one generation; 0 measures no generation
  std::size_t depth = 0;            // tokens that a slot holds before each measurement
  std::size_t sequences = 1;        // that generate together, a token each a step; slots 0 to N - 1
  std::size_t repeats = 5;          // of both; at least 1
  std::size_t batch_rows = 512;     // prompt tokens a step; cut to what the backend takes
  std::uint32_t seed = 1;
};

// Tokens a second, of all sequences together, one sample a repeat, in the order of measurement.
struct Speed {
  std::vector<double> prompt;
  std::vector<double> decode;
};

// What a set of samples says. All 0 for none.
struct SampleSummary {
  double median = 0;  // the mean of the two middle ones where their number is even
  double min = 0;
  double max = 0;
};
SampleSummary Summarize(std::vector<double> samples);

// Before anything is measured each kind runs once, so that caches, pages and graphs are warm. A
// generation is one step a token, without sampling. Prompts are of one sequence. `progress`, which
// may be empty, is called after each run, the warm-up included. Leaves the slots cleared. Errors:
// kInvalidInput when there is nothing to measure, no repeat, or depth and tokens exceed the context
// (all are named); kCancelled on `stop`; those of ModelBackend::Evaluate.
base::Result<Speed> MeasureSpeed(
    model::ModelBackend& backend, const SpeedRequest& request,
    const std::function<void(std::size_t done, std::size_t total)>& progress, std::stop_token stop);

// Where the time of a step goes: a prompt of request.prompt_tokens, all its steps together, and one
// generation step, the mean of request.decode_tokens.
struct StepProfile {
  std::vector<model::NodeTime> prompt;
  std::vector<model::NodeTime> decode;
};

// Behind request.depth tokens, after one run of each kind to warm up. request.repeats counts for
// nothing. Errors and slots as in MeasureSpeed.
base::Result<StepProfile> ProfileNodes(model::ModelBackend& backend, const SpeedRequest& request,
                                       std::stop_token stop);

}  // namespace engine
