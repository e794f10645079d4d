#include "moe/compute/packed_experts.h"

#include <ggml.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <format>
#include <fstream>
#include <mutex>
#include <set>
#include <string>
#include <tuple>

#include "base/file.h"
#include "moe/compute/test_experts.h"

namespace moe {
namespace {

using ::testing::ElementsAre;

TestExpertShape TwoLayers(int type) {
  TestExpertShape shape = ShapeOfType(type);
  shape.num_layers = 2;
  return shape;
}

TEST(PackedExperts, RunsOfOwnedExpertsAreContiguousAndAligned) {
  const TestExperts experts(TwoLayers(GGML_TYPE_Q4_K));
  const std::vector<std::uint8_t> owned = {0, 1, 1, 0, 0, 1, 1, 0, 0, 0, 0, 0};
  const auto packed = PackedExperts::Make({.weights = experts.weights().get(), .owned = owned});
  ASSERT_TRUE(packed) << packed.error().message;
  const auto run = PackedExperts::RunBytes(experts.weights()->layers[0]);
  ASSERT_TRUE(run);
  EXPECT_EQ((*packed)->bytes(), *run * 4);
  const std::byte* next = (*packed)->layer(LayerId(0))->runs[1];
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(next) % (2 << 20), 0u);
  EXPECT_EQ(run->count() % kernels::kAlignment, 0u);
  for (std::size_t i = 0; i < owned.size(); ++i) {
    const PackedExperts::Layer* layer = (*packed)->layer(LayerId(i / 6));
    ASSERT_NE(layer, nullptr);
    EXPECT_EQ(layer->runs[i % 6], owned[i] ? next : nullptr) << i;
    if (owned[i]) next += run->count();
  }
}

TEST(PackedExperts, BytesAreThoseOfTheKernelOnAnyNumberOfThreads) {
  TestExpertShape shape = ShapeOfType(GGML_TYPE_Q4_K);
  shape.down_type = GGML_TYPE_Q6_K;
  shape.fused = true;
  const TestExperts experts(shape);
  const std::vector<std::uint8_t> owned(6, 1);
  for (const std::size_t threads : {1, 3, 9}) {
    const auto packed = PackedExperts::Make(
        {.weights = experts.weights().get(), .owned = owned, .num_threads = threads});
    ASSERT_TRUE(packed) << packed.error().message;
    const PackedExperts::Layer& layer = *(*packed)->layer(LayerId(0));
    const ExpertMatrix& gate_up = experts.weights()->layers[0].gate;
    std::vector<std::byte> up(layer.up.kernel.PackedBytes(shape.n_ff));
    layer.up.kernel.Pack(gate_up.expert(ExpertId(5)) + shape.n_ff * gate_up.row_bytes, shape.n_ff,
                         0, kernels::MatrixKernel::NumStrips(shape.n_ff), up.data());
    EXPECT_EQ(std::memcmp(layer.runs[5] + layer.up.offset, up.data(), up.size()), 0) << threads;
  }
}

TEST(PackedExperts, LayersWithoutAKernelStayInTheFile) {
  const TestExperts experts(ShapeOfType(GGML_TYPE_Q4_K));
  ExpertWeights weights = *experts.weights();
  weights.layers[0].down.type = GGML_TYPE_I32;
  EXPECT_FALSE(PackedExperts::RunBytes(weights.layers[0]));
  const std::vector<std::uint8_t> owned(6, 1);
  const auto packed = PackedExperts::Make({.weights = &weights, .owned = owned});
  ASSERT_TRUE(packed) << packed.error().message;
  EXPECT_EQ((*packed)->layer(LayerId(0)), nullptr);
  EXPECT_EQ((*packed)->bytes(), base::Bytes());
}

TEST(PackedExperts, GivesBackWhatItHasReadAndReportsBytes) {
  const TestExperts experts(TwoLayers(GGML_TYPE_Q8_0));
  const std::vector<std::uint8_t> owned = {0, 1, 1, 1, 0, 1, 1, 0, 0, 0, 0, 0};
  std::mutex mutex;
  std::multiset<std::tuple<std::size_t, std::size_t, std::size_t>> released;
  std::vector<std::uint64_t> progress;
  std::uint64_t total = 0;
  const auto packed =
      PackedExperts::Make({.weights = experts.weights().get(),
                           .owned = owned,
                           .num_threads = 3,
                           .release =
                               [&](LayerId layer, std::size_t first, std::size_t count) {
                                 const std::lock_guard lock(mutex);
                                 released.emplace(layer.index(), first, count);
                               },
                           .progress =
                               [&](base::Bytes done, base::Bytes all) {
                                 progress.push_back(done.count());
                                 total = all.count();
                               }});
  ASSERT_TRUE(packed) << packed.error().message;
  // Each alone, then the neighbours 1 to 3 for the pages that they share.
  EXPECT_THAT(released, ElementsAre(std::tuple(0, 1, 1), std::tuple(0, 1, 3), std::tuple(0, 2, 1),
                                    std::tuple(0, 3, 1), std::tuple(0, 5, 1), std::tuple(1, 0, 1)));
  const LayerWeights& layer = experts.weights()->layers[0];
  EXPECT_EQ(total, 5 * (2 * layer.gate.expert_bytes + layer.down.expert_bytes));
  ASSERT_FALSE(progress.empty());
  EXPECT_TRUE(std::ranges::is_sorted(progress));
  EXPECT_EQ(progress.back(), total);
}

TEST(PackedExperts, StopsWhenAsked) {
  const TestExperts experts(ShapeOfType(GGML_TYPE_Q8_0));
  const std::vector<std::uint8_t> owned(6, 1);
  std::stop_source source;
  std::size_t released = 0;
  const auto packed =
      PackedExperts::Make({.weights = experts.weights().get(),
                           .owned = owned,
                           .release = [&](LayerId, std::size_t, std::size_t) { ++released; },
                           .progress = [&](base::Bytes, base::Bytes) { source.request_stop(); },
                           .stop = source.get_token()});
  ASSERT_FALSE(packed);
  EXPECT_EQ(packed.error().kind, base::ErrorKind::kCancelled);
  EXPECT_EQ(released, 1u);
}

TEST(PackedExperts, NothingIsLeftOfAnInterruptedCopy) {
  const TestExperts experts(ShapeOfType(GGML_TYPE_Q8_0));
  const std::vector<std::uint8_t> owned(6, 1);
  std::stop_source source;
  std::byte* copy = nullptr;
  const auto is_mapped = [&] {
    unsigned char resident = 0;
    return ::mincore(copy, 1, &resident) == 0;
  };
  const auto packed = PackedExperts::Make({.weights = experts.weights().get(),
                                           .owned = owned,
                                           .progress =
                                               [&](base::Bytes, base::Bytes) {
                                                 EXPECT_TRUE(is_mapped());
                                                 source.request_stop();
                                               },
                                           .stop = source.get_token(),
                                           .allocate =
                                               [&](base::Bytes size) {
                                                 auto memory =
                                                     kernels::PackedMemory::Allocate(size);
                                                 copy = memory->data();
                                                 return memory;
                                               }});
  ASSERT_FALSE(packed);
  ASSERT_NE(copy, nullptr);
  EXPECT_FALSE(is_mapped());
}

TEST(PackedExperts, JoinedCopiesGoWhenNothingOfThemIsOwned) {
  const TestExperts experts(ShapeOfType(GGML_TYPE_Q8_0));
  const auto pack = [&](std::vector<std::uint8_t> owned) {
    return *PackedExperts::Make({.weights = experts.weights().get(), .owned = owned});
  };
  const auto first = pack({1, 1, 0, 0, 0, 0});
  std::weak_ptr<const PackedExperts> second;
  std::shared_ptr<const PackedExperts> joined;
  {
    auto added = pack({0, 0, 0, 1, 0, 0});
    second = added;
    joined = PackedExperts::Join(first, std::move(added));
  }
  EXPECT_EQ(joined->layer(LayerId(0))->runs[1], first->layer(LayerId(0))->runs[1]);
  EXPECT_NE(joined->layer(LayerId(0))->runs[3], nullptr);
  EXPECT_EQ(joined->bytes(), first->bytes() + second.lock()->bytes());
  EXPECT_EQ(PackedExperts::Keep(joined, std::vector<std::uint8_t>{0, 1, 0, 1, 0, 0}), joined);
  joined = PackedExperts::Keep(joined, std::vector<std::uint8_t>{0, 1, 0, 0, 0, 0});
  EXPECT_EQ(joined, first);
  EXPECT_TRUE(second.expired());
  EXPECT_EQ(PackedExperts::Keep(joined, std::vector<std::uint8_t>(6, 0)), nullptr);
}

TEST(PackedExperts, RunsThatAreNotOwnedAnyMoreGiveTheirMemoryBack) {
  const TestExperts experts(ShapeOfType(GGML_TYPE_Q8_0));
  const auto pack = [&](std::vector<std::uint8_t> owned) {
    return *PackedExperts::Make({.weights = experts.weights().get(), .owned = owned});
  };
  const auto all = pack({1, 1, 1, 1, 0, 0});
  const std::vector<const std::byte*> runs = all->layer(LayerId(0))->runs;
  const auto byte_of = [&](std::size_t expert) {
    // In the middle, so that it lies on a page of the run's own.
    return runs[expert][all->layer(LayerId(0))->run_bytes / 2];
  };
  const std::vector<std::byte> before = {byte_of(0), byte_of(1), byte_of(2)};
  auto some = PackedExperts::Only(all, std::vector<std::uint8_t>{1, 0, 1, 0, 0, 0});
  EXPECT_EQ(some->layer(LayerId(0))->runs[0], runs[0]);
  EXPECT_EQ(some->layer(LayerId(0))->runs[1], nullptr);
  EXPECT_EQ(byte_of(1), before[1]) << "nothing was given back yet";
  all->GiveBackAllBut(some.get());
  EXPECT_EQ(byte_of(0), before[0]);
  EXPECT_EQ(byte_of(1), std::byte(0));
  EXPECT_EQ(byte_of(2), before[2]);

  // What left and comes again lies elsewhere, and the old run does not come back with it.
  auto again = PackedExperts::Join(some, pack({0, 1, 0, 0, 0, 0}));
  EXPECT_NE(again->layer(LayerId(0))->runs[1], runs[1]);
  const std::byte* const now = again->layer(LayerId(0))->runs[1];
  again = PackedExperts::Keep(again, std::vector<std::uint8_t>{0, 1, 0, 0, 0, 0});
  EXPECT_EQ(again->layer(LayerId(0))->runs[1], now);
  EXPECT_EQ(again->layer(LayerId(0))->runs[0], nullptr) << "its copy is gone";
  EXPECT_EQ(PackedExperts::Only(again, std::vector<std::uint8_t>(6, 0)), nullptr);
}

TEST(PackedExperts, SaysHowMuchMemoryTheSystemRefused) {
  const auto memory = kernels::PackedMemory::Allocate(base::Bytes::Max());
  ASSERT_FALSE(memory);
  EXPECT_EQ(memory.error().kind, base::ErrorKind::kCapacity);
  EXPECT_NE(memory.error().message.find("no memory for"), std::string::npos);
}

TEST(PackedExperts, RefusesTensorsThatDoNotFitTheirLayer) {
  const TestExperts experts(ShapeOfType(GGML_TYPE_Q8_0));
  ExpertWeights weights = *experts.weights();
  weights.layers[0].up->num_rows = 255;
  const std::vector<std::uint8_t> owned(6, 1);
  const auto packed = PackedExperts::Make({.weights = &weights, .owned = owned});
  ASSERT_FALSE(packed);
  EXPECT_EQ(packed.error().kind, base::ErrorKind::kCorruptModel);
}

// KiB of the mapping that starts at `data` which are in this process's memory.
std::size_t ResidentKib(const std::byte* data) {
  const std::string start = std::format("{:x}-", reinterpret_cast<std::uintptr_t>(data));
  std::ifstream maps("/proc/self/smaps");
  bool inside = false;
  for (std::string line; std::getline(maps, line);) {
    if (line.starts_with(start)) inside = true;
    if (inside && line.starts_with("Rss:")) return std::stoul(line.substr(4));
  }
  ADD_FAILURE() << "no mapping starts there";
  return 0;
}

TEST(PackedExperts, ResidentPagesOfAPackedFileAreFew) {
  TestExpertShape shape = ShapeOfType(GGML_TYPE_Q8_0);
  const TestExperts experts(shape);
  ExpertWeights weights = *experts.weights();
  const ExpertMatrix& gate = weights.layers[0].gate;
  const std::size_t stack_bytes = gate.expert_bytes * shape.num_experts;
  // All three matrices take their bytes from one stack: they are of one size.
  const std::string path = testing::TempDir() + "packed_experts_test.bin";
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(gate.data), static_cast<std::streamsize>(stack_bytes));
  const auto file = base::MappedFile::Open(path);
  ASSERT_TRUE(file) << file.error().message;
  LayerWeights& layer = weights.layers[0];
  layer.gate.data = layer.up->data = layer.down.data = file->bytes().data();
  const std::vector<std::uint8_t> owned(6, 1);
  const std::size_t expert_bytes = gate.expert_bytes;
  const auto pack = [&](bool release) {
    PackRequest request{.weights = &weights, .owned = owned};
    if (release) {
      request.release = [&](LayerId, std::size_t first, std::size_t count) {
        file->ReleasePages(first * expert_bytes, count * expert_bytes);
      };
    }
    return PackedExperts::Make(request).has_value();
  };
  ASSERT_TRUE(pack(false));
  EXPECT_GE(ResidentKib(file->bytes().data()) * 1024, stack_bytes - 4096);
  ASSERT_TRUE(pack(true));
  EXPECT_LE(ResidentKib(file->bytes().data()), 8u);
}

}  // namespace
}  // namespace moe
