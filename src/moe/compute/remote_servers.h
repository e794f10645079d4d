// RemoteServers: the child processes that talk to the ggml RPC servers of a target list, one a
// server, each over one connection.
//
// A server serves one connection at a time, so all targets behind it are hosted by one process, and
// a connection that was made to ask for free memory is kept for loading. When the process ends all
// its targets are lost; the next Start makes it anew for all of them. Any thread.
#pragma once

#include <chrono>
#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <stop_token>
#include <string>
#include <variant>
#include <vector>

#include "base/result.h"
#include "moe/compute/worker_child.h"
#include "moe/ipc/channel.h"
#include "moe/ipc/messages.h"
#include "moe/ipc/worker_session.h"
#include "moe/target/target_config.h"

namespace moe {

struct RemoteServersOptions {
  std::string program;  // path of expert-split itself
  std::string model;    // path of the model file
  // `load` and `batch` of the sessions; how long a welcome is waited for Open is told.
  ipc::WorkerTimeouts timeouts;
  // Weights travel in pieces that the server's own cache knows again (gg/upload.h).
  bool use_cache = false;
};

class RemoteServers {
 public:
  struct Opened {
    std::shared_ptr<WorkerChild> child;  // shared with the other targets behind the server
    ipc::WorkerSession session;
  };

  // For the targets of `config` behind RPC servers, but for those whose capacity is 0.
  RemoteServers(const ExpertSplitTargetConfig& config, RemoteServersOptions options);

  // Starts the process for the target's server unless it runs; waits for nothing. Precondition: the
  // target is one of the list. Errors: kIo when it cannot be started; kWorkerLost when it runs but
  // the target's own session was taken and has ended.
  base::Result<void> Start(const ExpertSplitTarget& target);

  // The target's session, for the caller alone from now on; starts the process if need be. Errors:
  // as Start; kWorkerLost when the server does not answer as one within `patience`; what the
  // process reports; kCancelled when `stop` is requested. After an error the process is ended.
  base::Result<Opened> Open(const ExpertSplitTarget& target, std::chrono::milliseconds patience,
                            const std::stop_token& stop);

  // What the target's worker says of itself; its session stays here for Open. Errors: as Open.
  base::Result<ipc::Welcome> Ask(const ExpertSplitTarget& target,
                                 std::chrono::milliseconds patience);

  // Ends the processes none of whose sessions was taken: their servers are for others.
  void CloseUnused();

 private:
  // A session that nobody has taken yet; a channel before its welcome was read.
  struct Unused {
    std::shared_ptr<WorkerChild> child;
    std::variant<ipc::Channel, ipc::WorkerSession> connection;
  };
  struct Server {
    std::weak_ptr<WorkerChild> child;
    std::size_t num_targets = 0;
    std::map<std::string, Unused> unused;  // by the target's name
  };

  base::Result<void> StartLocked(const ExpertSplitTarget& target);

  std::vector<ExpertSplitTarget> targets_;
  RemoteServersOptions options_;
  std::mutex mutex_;
  std::map<std::string, Server> servers_;  // guarded; by host and port
};

}  // namespace moe
