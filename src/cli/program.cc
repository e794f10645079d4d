#include "cli/program.h"

#include <algorithm>
#include <cstdio>
#include <exception>
#include <format>
#include <vector>

#include "cli/command.h"
#include "cli/exit_status.h"
#include "cli/interrupt.h"
#include "cli/output.h"
#include "cli/stderr_log.h"
#include "gg/devices.h"

namespace cli {
namespace {

int Report(std::string message, int status) {
  // One line, whatever a library put into its message.
  std::ranges::replace(message, '\n', ' ');
  std::fprintf(stderr, "expert-split: error: %s\n", message.c_str());
  return status;
}

void DescribeProgram(CLI::App& program) {
  program.description(
      "expert-split runs Mixture-of-Experts models over an ordered list of targets: every expert "
      "of\n"
      "every layer has exactly one owner.");
  program.set_version_flag("--version", "expert-split " EXPERT_SPLIT_VERSION);
  program.require_subcommand(0, 1);
  program.footer(
      "Examples:\n"
      "  expert-split targets                          what this machine offers\n"
      "  expert-split plan --model M.gguf              where the experts would go\n"
      "  expert-split plan --model M.gguf --targets cuda:0=20GiB,hip:0,cpu\n"
      "  expert-split run --model M.gguf --prompt 'Once upon a time'\n"
      "  expert-split serve --model M.gguf             an HTTP server with OpenAI's interface\n"
      "\n"
      "'expert-split COMMAND --help' explains a command with examples.\n"
      "Exit status: 0 done, 2 command line, 3 model, plan or profile file, 4 not enough capacity,\n"
      "5 failure while running, 130 Ctrl-C.");
}

std::string CommandNames(const std::vector<Command>& commands) {
  std::string names;
  for (const Command& command : commands) {
    names += (names.empty() ? "" : ", ") + command.app->get_name();
  }
  return names;
}

// CLI11 says of an unknown command only that an argument was not expected.
bool NamesUnknownCommand(const std::vector<Command>& commands, std::string_view word) {
  return !word.starts_with('-') && std::ranges::none_of(commands, [word](const Command& command) {
    return command.app->get_name() == word;
  });
}

int RunCommand(CLI::App& program, const std::vector<Command>& commands, bool verbose) {
  const Session session{
      .log = MakeStderrLog(verbose ? base::LogLevel::kDebug : base::LogLevel::kInfo),
      .progress = {}};
  for (const Command& command : commands) {
    if (!command.app->parsed()) continue;
    const auto done = command.run(session);
    return done ? kExitOk : Report(done.error().message, ExitStatus(done.error().kind));
  }
  const auto printed = PrintText(program.help());
  return printed ? kExitOk : Report(printed.error().message, ExitStatus(printed.error().kind));
}

int ParseAndRun(int argc, const char* const* argv) {
  CLI::App program;
  program.name("expert-split");
  // Our texts bring their own line breaks.
  program.get_formatter()->enable_description_formatting(false);
  program.get_formatter()->enable_footer_formatting(false);
  DescribeProgram(program);
  bool verbose = false;
  program.add_flag("--verbose,-v", verbose, "show what libraries report while they work");
  program.fallthrough();
  const std::vector<Command> commands = {AddTargetsCommand(program), AddPlanCommand(program),
                                         AddRunCommand(program),     AddPerplexityCommand(program),
                                         AddBenchCommand(program),   AddProfileCommand(program),
                                         AddServeCommand(program),   AddWorkerCommand(program)};
  if (argc > 1 && NamesUnknownCommand(commands, argv[1])) {
    return Report(
        std::format("unknown command '{}'; commands: {}", argv[1], CommandNames(commands)),
        kExitCommandLine);
  }
  try {
    program.parse(argc, argv);
  } catch (const CLI::Success& asked) {  // --help, --version
    return program.exit(asked);
  } catch (const CLI::ParseError& error) {
    const auto parsed = program.get_subcommands();
    return Report(std::format("{}; see expert-split {}--help", error.what(),
                              parsed.empty() ? "" : parsed.front()->get_name() + " "),
                  kExitCommandLine);
  }
  return RunCommand(program, commands, verbose);
}

}  // namespace

int RunProgram(int argc, const char* const* argv) {
  try {
    InstallSignalHandlers();
    return ParseAndRun(argc, argv);
  } catch (const std::exception& error) {
    return Report(std::format("internal fault: {}", error.what()), kExitRunTime);
  } catch (...) {
    return Report("internal fault", kExitRunTime);
  }
}

}  // namespace cli
