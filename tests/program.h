// Runs the built expert-split as a user would, for whole-program tests. One thread.
#pragma once

#include <string>
#include <vector>

namespace test {

struct ProgramResult {
  int status = -1;  // exit status; 128 + signal when a signal ended it
  std::string out;  // stdout, whole
  std::string err;  // stderr, whole
};

// Runs EXPERT_SPLIT_BINARY with `arguments`, stdin empty. `environment` entries ("NAME=value") are
// added to this process's; "NAME" alone removes one. Fails the test when it cannot be started.
ProgramResult RunExpertSplit(const std::vector<std::string>& arguments,
                             const std::vector<std::string>& environment = {});

}  // namespace test
