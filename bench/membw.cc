// Read bandwidth as expert weights see it: every thread reads whole blocks of 288 KB (an expert's
// matrix) in random order out of 1 GiB. Prints one JSON object, GB/s (1e9) of all threads together.
//
//   membw [THREADS] [ROUNDS]
#include <algorithm>
#include <barrier>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

namespace {

constexpr std::size_t kBlockWords = std::size_t{288} * 1024 / sizeof(std::uint64_t);
constexpr std::size_t kNumBlocks = (std::size_t{1} << 30) / sizeof(std::uint64_t) / kBlockWords;

std::uint64_t SumBlock(const std::uint64_t* block) {
  // Independent sums, so that the memory and not the adder is the limit.
  std::uint64_t sums[32] = {};
  for (std::size_t i = 0; i < kBlockWords; i += 32) {
    for (std::size_t lane = 0; lane < 32; ++lane) sums[lane] += block[i + lane];
  }
  return std::accumulate(std::begin(sums), std::end(sums), std::uint64_t{0});
}

// Seconds in which all threads together read every block once.
double ReadAll(const std::vector<std::uint64_t>& memory, const std::vector<std::size_t>& order,
               std::size_t num_threads, std::uint64_t expected) {
  using Clock = std::chrono::steady_clock;
  std::vector<std::uint64_t> sums(num_threads);
  std::vector<std::thread> threads;
  std::barrier start(static_cast<std::ptrdiff_t>(num_threads) + 1);
  for (std::size_t t = 0; t < num_threads; ++t) {
    threads.emplace_back([&, t] {
      start.arrive_and_wait();
      std::uint64_t sum = 0;
      for (std::size_t i = t; i < order.size(); i += num_threads) {
        sum += SumBlock(memory.data() + order[i] * kBlockWords);
      }
      sums[t] = sum;
    });
  }
  start.arrive_and_wait();
  const auto begin = Clock::now();
  for (std::thread& thread : threads) thread.join();
  const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  if (std::accumulate(sums.begin(), sums.end(), std::uint64_t{0}) != expected) {
    std::fprintf(stderr, "membw: a read gave wrong data\n");
    std::exit(1);
  }
  return seconds;
}

}  // namespace

int main(int argc, char** argv) {
  const std::size_t cores = std::max(1U, std::thread::hardware_concurrency());
  const std::size_t num_threads = argc > 1 ? std::strtoul(argv[1], nullptr, 10) : cores;
  const std::size_t rounds = argc > 2 ? std::strtoul(argv[2], nullptr, 10) : 9;
  if (num_threads == 0 || num_threads > 1024 || rounds == 0) {
    std::fprintf(stderr, "usage: membw [THREADS] [ROUNDS]\n");
    return 2;
  }
  std::vector<std::uint64_t> memory(kNumBlocks * kBlockWords);
  std::iota(memory.begin(), memory.end(), std::uint64_t{0});
  const std::uint64_t expected = std::accumulate(memory.begin(), memory.end(), std::uint64_t{0});
  std::vector<std::size_t> order(kNumBlocks);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::shuffle(order, std::mt19937(1));
  std::vector<double> speeds;
  for (std::size_t i = 0; i < rounds; ++i) {
    const double seconds = ReadAll(memory, order, num_threads, expected);
    speeds.push_back(static_cast<double>(memory.size() * sizeof(std::uint64_t)) / seconds / 1e9);
  }
  std::ranges::sort(speeds);
  std::printf("{\"threads\": %zu, \"median_gb_s\": %.1f, \"min_gb_s\": %.1f, \"max_gb_s\": %.1f}\n",
              num_threads, speeds[speeds.size() / 2], speeds.front(), speeds.back());
  return 0;
}
