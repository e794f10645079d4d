#include "server/http/connection_threads.h"

#include <gtest/gtest.h>

#include <atomic>
#include <latch>

namespace server {
namespace {

TEST(ConnectionThreadsTest, AllConnectionsRunAtTheSameTime) {
  constexpr int kConnections = 64;
  ConnectionThreads threads(kConnections);
  for (int round = 0; round < 20; ++round) {
    // Nobody ends before all have begun.
    std::latch all(kConnections);
    std::latch ended(kConnections);
    for (int i = 0; i < kConnections; ++i) {
      // Threads of the round before may not be idle again yet.
      while (!threads.enqueue([&] {
        all.arrive_and_wait();
        ended.count_down();
      })) {
        std::this_thread::yield();
      }
    }
    ended.wait();
  }
}

TEST(ConnectionThreadsTest, BeyondTheLimitConnectionsAreRefused) {
  ConnectionThreads threads(1);
  std::latch end(1);
  EXPECT_TRUE(threads.enqueue([&] { end.wait(); }));
  EXPECT_FALSE(threads.enqueue([] {}));
  end.count_down();
}

TEST(ConnectionThreadsTest, WhatWasAcceptedRunsBeforeTheEnd) {
  std::atomic<int> ran = 0;
  {
    ConnectionThreads threads(100);
    for (int i = 0; i < 100; ++i) EXPECT_TRUE(threads.enqueue([&] { ++ran; }));
  }
  EXPECT_EQ(ran, 100);
}

}  // namespace
}  // namespace server
