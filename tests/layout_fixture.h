// A test model loaded under a layout, as `expert-split run` does it, and its logits.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cli/loaded_model.h"
#include "support/test_models.h"

namespace test {

// Of every sequence that LayoutLogits computes.
inline constexpr std::size_t kLayoutTokens = 120;

struct LayoutOptions {
  std::string policy = "ordered";
  std::string plan = {};  // a plan file, instead of planning
  std::string repack = "auto";
  // Told of the placement before anything is loaded. May be empty.
  std::function<void(const cli::ModelPlacement&)> on_placed = {};
};

// The model file `path`, one CPU thread. Fails the running test and returns nullptr on an error.
inline std::unique_ptr<cli::LoadedModel> LoadLayout(const std::string& path,
                                                    const std::string& targets,
                                                    const LayoutOptions& layout = {}) {
  const cli::Session session;
  const cli::ModelOptions options{.model = path, .targets = targets};
  cli::PlacementOptions placement;
  placement.context = 256;
  placement.batch_rows = 64;
  placement.policy = layout.policy;
  placement.plan = layout.plan;
  placement.repack = layout.repack;
  auto placed = cli::PlaceModel(session, options, placement);
  if (!placed) {
    ADD_FAILURE() << targets << ": " << placed.error().message;
    return nullptr;
  }
  if (layout.on_placed) layout.on_placed(*placed);
  auto loaded =
      cli::LoadedModel::Load(session, std::move(*placed), options, placement, /*threads=*/1, {});
  if (!loaded) {
    ADD_FAILURE() << targets << ": " << loaded.error().message;
    return nullptr;
  }
  return std::move(*loaded);
}

inline std::vector<std::int32_t> LayoutTokens(std::size_t vocab_size) {
  std::vector<std::int32_t> tokens;
  std::uint32_t x = 7;
  while (tokens.size() < kLayoutTokens) {
    x = x * 1664525U + 1013904223U;
    tokens.push_back(static_cast<std::int32_t>((x >> 12) % vocab_size));
  }
  return tokens;
}

// [kLayoutTokens, vocab]: a prompt of 100 tokens in two steps, then token by token. `after_step` is
// told the number of rows of each step once it is computed.
template <class AfterStep>
std::vector<float> LayoutLogits(model::ModelBackend& backend, const AfterStep& after_step) {
  const std::vector<std::int32_t> tokens = LayoutTokens(backend.vocab_size());
  std::vector<float> logits;
  for (std::size_t begin = 0; begin < tokens.size();) {
    const std::size_t count = begin < 100 ? 50 : 1;
    std::vector<model::BatchRow> rows;
    for (std::size_t i = begin; i < begin + count; ++i) {
      rows.push_back({.token = tokens[i],
                      .slot = 0,
                      .position = static_cast<std::uint32_t>(i),
                      .wants_logits = true});
    }
    auto answer = backend.Evaluate(rows, {});
    if (!answer) {
      ADD_FAILURE() << answer.error().message;
      return {};
    }
    logits.insert(logits.end(), answer->begin(), answer->end());
    after_step(count);
    begin += count;
  }
  return logits;
}

inline std::vector<float> LayoutLogits(model::ModelBackend& backend) {
  return LayoutLogits(backend, [](std::size_t) {});
}

struct LoadedLayout {
  std::unique_ptr<cli::LoadedModel> model;
  std::vector<float> logits;  // [kLayoutTokens, vocab]
};

inline LoadedLayout RunLayout(const std::string& path, const std::string& targets,
                              const LayoutOptions& options = {}) {
  LoadedLayout loaded{.model = LoadLayout(path, targets, options)};
  if (loaded.model != nullptr) loaded.logits = LayoutLogits(loaded.model->backend());
  return loaded;
}

// The logits of the layout `cpu`, computed once a program.
inline std::vector<float> SingleTarget(const std::string& path) {
  static std::map<std::string, std::vector<float>> known;
  const auto [found, fresh] = known.try_emplace(path);
  if (fresh) found->second = RunLayout(path, "cpu").logits;
  return found->second;
}

}  // namespace test
