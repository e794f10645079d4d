// The whole program behind main: parses the command line, runs one command, reports its error.
#pragma once

namespace cli {

// Returns the exit status (cli/exit_status.h). Prints at most one error line on stderr,
// "expert-split: error: ...". Nothing escapes: what libraries throw ends here as a run-time
// failure.
int RunProgram(int argc, const char* const* argv);

}  // namespace cli
