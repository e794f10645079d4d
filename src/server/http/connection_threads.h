// A thread for each open connection.
//
// A connection keeps its thread as long as its client keeps it open, so one that waits for
// another's thread may wait for ever. httplib's own pool lets that happen when several connections
// come while one thread is idle. Used by httplib's listening thread alone.
#pragma once

#include <httplib.h>

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace server {

class ConnectionThreads final : public httplib::TaskQueue {
 public:
  // `most` connections at the same time. Threads are made as they are needed and kept.
  explicit ConnectionThreads(std::size_t most) : most_(most) {}
  ~ConnectionThreads() override { shutdown(); }

  // False, so that the connection is closed, when there are as many as there may be.
  bool enqueue(std::function<void()> connection) override;
  // Waits until all connections have ended.
  void shutdown() override;

 private:
  void Run();
  bool AddThread();

  const std::size_t most_;
  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  std::deque<std::function<void()>> waiting_;  // never more than idle threads
  std::size_t idle_ = 0;
  bool ending_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace server
