#include "moe/compute/node_compute.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "moe/compute/host_compute.h"
#include "moe/compute/hot_cold_compute.h"
#include "moe/compute/measured_compute.h"
#include "moe/compute/test_experts.h"

namespace moe {
namespace {

// What node of how many threads gets which, by the number of CPUs.
std::vector<std::vector<std::size_t>> Shares(const NodeTeams& teams, std::size_t num_threads) {
  std::vector<std::vector<std::size_t>> shares(teams.nodes().size());
  for (std::size_t node = 0; node < shares.size(); ++node) {
    for (std::size_t i = 0; i < num_threads; ++i) {
      const auto member = teams.Share(node, {i, num_threads});
      if (!member) continue;
      EXPECT_EQ(member->index, shares[node].size()) << "numbered from 0";
      shares[node].push_back(i);
    }
    for (const std::size_t i : shares[node]) {
      EXPECT_EQ(teams.Share(node, {i, num_threads})->count, shares[node].size());
    }
  }
  return shares;
}

TEST(NodeTeams, ThreadsAreDividedInProportionToCpus) {
  const NodeTeams equal({{0, {0, 1, 2, 3}}, {1, {4, 5, 6, 7}}});
  EXPECT_EQ(Shares(equal, 4), (std::vector<std::vector<std::size_t>>{{0, 1}, {2, 3}}));
  const NodeTeams unequal({{0, {0}}, {1, {1, 2, 3}}});
  EXPECT_EQ(Shares(unequal, 8),
            (std::vector<std::vector<std::size_t>>{{0, 1}, {2, 3, 4, 5, 6, 7}}));
}

TEST(NodeTeams, EveryNodeHasAThreadHoweverFewThereAre) {
  const NodeTeams teams({{0, {0}}, {1, {1}}, {2, {}}});
  for (std::size_t count = 1; count < 5; ++count) {
    std::vector<bool> used(count);
    for (const auto& share : Shares(teams, count)) {
      EXPECT_FALSE(share.empty()) << count;
      for (const std::size_t i : share) used[i] = true;
    }
    EXPECT_THAT(used, ::testing::Each(true)) << count;
  }
}

TEST(NodeCompute, TwoNodesGiveTheBitsOfOneOwnerAndDivideTheRows) {
  const TestExpertShape shape = {.num_experts = 8};
  const TestExperts experts(shape);
  const auto runtime = SplitAtRandom(shape, 2);
  const auto make = [&](std::shared_ptr<const ExpertSplitRuntime> owned, std::size_t target) {
    auto host = HostCompute::Make(
        {.weights = experts.weights(), .runtime = std::move(owned), .target = TargetId(target)});
    EXPECT_TRUE(host) << host.error().message;
    return *std::move(host);
  };
  // Two nodes with the same CPUs: the machine of the test may have one.
  const std::vector<std::uint32_t> cpus = gg::NumaNodes().front().cpus;
  const auto teams =
      std::make_shared<const NodeTeams>(std::vector<gg::NumaNode>{{0, cpus}, {1, cpus}});
  std::vector<std::unique_ptr<MoeExpertCompute>> owners;
  for (std::size_t node = 0; node < 2; ++node) {
    owners.push_back(std::make_unique<NodeCompute>(
        std::make_unique<MeasuredCompute>(make(runtime, node), ComputePlace::kOnTeam), teams,
        node));
  }
  HotColdCompute both(std::move(owners), std::nullopt);
  const auto whole = make(nullptr, 0);
  for (const std::size_t num_rows : {1u, 3u, 40u}) {
    const TestBatch batch(shape, num_rows, /*num_used=*/3);
    const std::vector<float> expected = RunBatch(*whole, batch.batch());
    for (const std::size_t num_threads : {1u, 2u, 3u, 4u}) {
      EXPECT_EQ(RunBatch(both, batch.batch(), num_threads), expected)
          << num_rows << " rows, " << num_threads << " threads";
    }
  }
  EXPECT_EQ(both.num_pairs(0) + both.num_pairs(1), 4u * 3 * (1 + 3 + 40));
  EXPECT_GT(both.num_pairs(0), 0u);
  EXPECT_GT(both.num_pairs(1), 0u);
}

}  // namespace
}  // namespace moe
