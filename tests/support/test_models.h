// Where the models are that the build makes for tests: expert_split_model in CMake.
#pragma once

#include <string>
#include <string_view>

namespace test {

// The path of expert_split_model(name ...).
inline std::string ModelPath(std::string_view name) {
  return std::string(EXPERT_SPLIT_TEST_MODELS) + "/" + std::string(name) + ".gguf";
}

}  // namespace test
