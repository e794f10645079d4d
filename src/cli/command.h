// The shape of every command: one file that declares its options and what it does.
//
//     Command AddTargetsCommand(CLI::App& program);   // declares `expert-split targets`
//
// AddXCommand makes the subcommand with its options and returns it with the function to run once
// the command line is parsed. The function returns an error instead of printing one; RunProgram
// (cli/program.h) prints it and turns its kind into the exit status. One thread.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/log.h"
#include "base/result.h"

namespace cli {

// What every command is given.
struct Session {
  base::Log log;  // to stderr
  // Also told what a progress line says, wherever stderr goes; may be empty.
  std::function<void(std::string_view)> progress;
};

struct Command {
  CLI::App* app = nullptr;  // owned by the program's App
  std::function<base::Result<void>(const Session&)> run;
};

// Options that several commands share, with one help text each.
struct ModelOptions {
  std::string model;    // --model, always given
  std::string targets;  // --targets; empty means every GPU found, then cpu
};

// --model (required) and --targets.
void AddModelOptions(CLI::App& app, ModelOptions& options);
// --json
void AddJsonOption(CLI::App& app, bool& json);

Command AddTargetsCommand(CLI::App& program);
Command AddPlanCommand(CLI::App& program);
Command AddRunCommand(CLI::App& program);
Command AddPerplexityCommand(CLI::App& program);
Command AddBenchCommand(CLI::App& program);
Command AddProfileCommand(CLI::App& program);
Command AddServeCommand(CLI::App& program);
Command AddWorkerCommand(CLI::App& program);

}  // namespace cli
