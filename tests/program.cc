#include "program.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <string_view>
#include <thread>

#include "running_program.h"

namespace test {

ProgramResult RunProgram(const std::string& path, const std::vector<std::string>& arguments,
                         const std::vector<std::string>& environment) {
  RunningProgram program(path, arguments, environment);
  program.Ended(/*wait=*/true);
  return program.Result();
}

ProgramResult RunExpertSplit(const std::vector<std::string>& arguments,
                             const std::vector<std::string>& environment) {
  return RunProgram(EXPERT_SPLIT_BINARY, arguments, environment);
}

ProgramResult InterruptExpertSplit(const std::vector<std::string>& arguments,
                                   const std::vector<std::string>& environment, Stream stream,
                                   std::string_view text) {
  RunningProgram program(EXPERT_SPLIT_BINARY, arguments, environment);
  while (!program.Ended(/*wait=*/false)) {
    const std::string written = program.Written(stream);
    if (written.empty() || !written.contains(text)) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
      continue;
    }
    program.Signal(SIGINT);
    program.Ended(/*wait=*/true);
    return program.Result();
  }
  ADD_FAILURE() << "ended before it could be interrupted: " << program.Written(Stream::kErr);
  return program.Result();
}

void ExpectOneErrorLine(const ProgramResult& result, int status, std::string_view part) {
  EXPECT_EQ(result.status, status) << result.err;
  EXPECT_EQ(result.out, "");
  EXPECT_TRUE(result.err.starts_with("expert-split: error: ")) << result.err;
  EXPECT_EQ(std::ranges::count(result.err, '\n'), 1) << result.err;
  EXPECT_TRUE(result.err.ends_with('\n')) << result.err;
  EXPECT_NE(result.err.find(part), std::string::npos) << result.err;
}

}  // namespace test
