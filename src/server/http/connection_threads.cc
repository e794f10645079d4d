#include "server/http/connection_threads.h"

#include <system_error>
#include <utility>

namespace server {

bool ConnectionThreads::enqueue(std::function<void()> connection) {
  {
    const std::lock_guard lock(mutex_);
    if (waiting_.size() >= idle_ && !AddThread()) return false;
    waiting_.push_back(std::move(connection));
  }
  changed_.notify_one();
  return true;
}

bool ConnectionThreads::AddThread() {
  if (ending_ || threads_.size() >= most_) return false;
  try {
    threads_.emplace_back([this] { Run(); });
  } catch (const std::system_error&) {
    return false;
  }
  ++idle_;
  return true;
}

void ConnectionThreads::Run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return ending_ || !waiting_.empty(); });
    if (waiting_.empty()) return;
    const std::function<void()> connection = std::move(waiting_.front());
    waiting_.pop_front();
    --idle_;
    lock.unlock();
    connection();
    lock.lock();
    ++idle_;
  }
}

void ConnectionThreads::shutdown() {
  std::vector<std::thread> threads;
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
    threads.swap(threads_);
  }
  changed_.notify_all();
  for (std::thread& thread : threads) thread.join();
}

}  // namespace server
