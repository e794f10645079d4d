// The records of tests/golden: what transformers computes with a small model in this repository:
// one beside the record, or the demo model of models/ (its weights in F32, made by the build).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace test {

struct GoldenRecord {
  std::string model_path;            // F32 weights
  std::vector<std::int32_t> tokens;  // one sequence from an empty state
  std::vector<float> logits;         // [tokens, vocab]
  std::size_t vocab = 0;
};

// Every record's name, for parameterised tests.
std::vector<std::string> GoldenRecordNames();

// The record `name`; without tokens when its files are missing or do not fit together.
GoldenRecord ReadGoldenRecord(std::string_view name);

}  // namespace test
