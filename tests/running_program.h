// A program that was started and runs on its own, its streams in files. One thread.
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "program.h"

namespace test {

// A file of a temporary folder that takes one stream; files cannot fill up as pipes do.
class StreamFile {
 public:
  StreamFile();
  ~StreamFile();
  StreamFile(const StreamFile&) = delete;
  StreamFile& operator=(const StreamFile&) = delete;

  const char* path() const { return path_.c_str(); }
  std::string Content() const;

 private:
  std::string path_;
};

class RunningProgram {
 public:
  // `environment` as RunExpertSplit. Fails the test when it cannot be started; then running() is
  // false.
  RunningProgram(const std::string& path, const std::vector<std::string>& arguments,
                 const std::vector<std::string>& environment);
  RunningProgram(const RunningProgram&) = delete;
  RunningProgram& operator=(const RunningProgram&) = delete;
  // One that still runs is ended hard.
  ~RunningProgram();

  bool running() const { return running_; }
  pid_t pid() const { return child_; }
  std::string Written(Stream stream) const {
    return stream == Stream::kOut ? out_.Content() : err_.Content();
  }
  void Signal(int signal) const;

  // Whether it has ended; waits for that when asked to.
  bool Ended(bool wait);

  // Precondition: it has ended.
  ProgramResult Result() const;

 private:
  StreamFile out_;
  StreamFile err_;
  pid_t child_ = -1;
  bool running_ = false;
  int status_ = 0xff << 8;  // the exit status of what was never started
};

// The port that a started `serve` listens on, from when it is ready; 0 when it ended before.
int ServedPort(RunningProgram& program);

}  // namespace test
