// Runs the built expert-split, or a program to compare it with, as a user would, for whole-program
// tests. One thread.
#pragma once

#include <string>
#include <string_view>
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

// The same with another program.
ProgramResult RunProgram(const std::string& path, const std::vector<std::string>& arguments,
                         const std::vector<std::string>& environment = {});

enum class Stream { kOut, kErr };

// As RunExpertSplit, but presses Ctrl-C once the program has written `text` (empty: anything) to
// `stream`. Fails the test when it ends without having done so.
ProgramResult InterruptExpertSplit(const std::vector<std::string>& arguments,
                                   const std::vector<std::string>& environment, Stream stream,
                                   std::string_view text);

// Values of GGML_VK_VISIBLE_DEVICES as environment entries: one device (llvmpipe where there is no
// GPU) as vulkan:0 and vulkan:1; none.
inline const std::string kTwoVulkan = "GGML_VK_VISIBLE_DEVICES=0,0";
inline const std::string kNoVulkan = "GGML_VK_VISIBLE_DEVICES=";

// Fails the test unless the program ended with `status`, nothing on stdout and one line on stderr,
// an error that holds `part`.
void ExpectOneErrorLine(const ProgramResult& result, int status, std::string_view part);

}  // namespace test
