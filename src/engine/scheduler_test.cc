#include "engine/scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

namespace engine {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr StepDemand kGenerates = {.generates = true};
constexpr StepDemand Prompt(std::size_t rows) { return {.prompt_rows = rows}; }

std::vector<std::size_t> Plan(const std::vector<StepDemand>& demands, std::size_t batch_rows,
                              std::size_t mixed_batch_rows, std::size_t turn = 0) {
  return PlanStep(demands, {.batch_rows = batch_rows, .mixed_batch_rows = mixed_batch_rows}, turn);
}

TEST(SchedulerTest, APromptAloneFillsTheStep) {
  EXPECT_THAT(Plan({Prompt(1000)}, 512, 128), ElementsAre(512));
  EXPECT_THAT(Plan({Prompt(3)}, 512, 128), ElementsAre(3));
}

TEST(SchedulerTest, PromptsGiveWayToStreams) {
  EXPECT_THAT(Plan({kGenerates, Prompt(1000), kGenerates}, 512, 128), ElementsAre(1, 126, 1));
  EXPECT_THAT(Plan({kGenerates, kGenerates}, 512, 128), ElementsAre(1, 1));
}

TEST(SchedulerTest, PromptsShareEqually) {
  EXPECT_THAT(Plan({Prompt(1000), Prompt(1000)}, 100, 10), ElementsAre(50, 50));
  EXPECT_THAT(Plan({Prompt(1000), Prompt(10), Prompt(1000)}, 100, 10), ElementsAre(45, 10, 45));
  EXPECT_THAT(Plan({Prompt(9), Prompt(9), Prompt(9)}, 10, 10), ElementsAre(4, 3, 3));
  EXPECT_THAT(Plan({Prompt(9), Prompt(9), Prompt(9)}, 2, 2), ElementsAre(1, 1, 0));
}

TEST(SchedulerTest, StreamsCannotHoldUpAPromptForGood) {
  EXPECT_THAT(Plan({kGenerates, kGenerates, Prompt(5)}, 512, 1), ElementsAre(1, 1, 1));
}

TEST(SchedulerTest, MoreStreamsThanRowsTakeTurns) {
  const std::vector<StepDemand> three = {kGenerates, kGenerates, kGenerates};
  EXPECT_THAT(Plan(three, 2, 2, 0), ElementsAre(1, 1, 0));
  EXPECT_THAT(Plan(three, 2, 2, 1), ElementsAre(0, 1, 1));
  EXPECT_THAT(Plan(three, 2, 2, 2), ElementsAre(1, 0, 1));
}

TEST(SchedulerTest, NeverExceedsTheStepAndNeverIdlesWhileThereIsWork) {
  for (std::size_t streams = 0; streams < 5; ++streams) {
    for (std::size_t prompts = 0; prompts < 5; ++prompts) {
      for (const std::size_t rows : {1, 2, 3, 7, 64}) {
        std::vector<StepDemand> demands(streams, kGenerates);
        for (std::size_t i = 0; i < prompts; ++i) demands.push_back(Prompt(1 + i * 5));
        const auto plan = Plan(demands, rows, 4, 3);
        const std::size_t sum = std::accumulate(plan.begin(), plan.end(), std::size_t{0});
        EXPECT_LE(sum, rows);
        EXPECT_EQ(sum == 0, demands.empty());
        for (std::size_t i = 0; i < demands.size(); ++i) {
          EXPECT_LE(plan[i], demands[i].generates ? 1 : demands[i].prompt_rows);
        }
      }
    }
  }
}

TEST(CheckpointsOfTest, AreAscendingSpacedAndBehindWhatIsThere) {
  const std::vector<std::size_t> boundaries = {10, 15, 30, 31, 50, 55};
  EXPECT_THAT(CheckpointsOf(boundaries, 0, 60, 1), ElementsAre(10, 15, 30, 31, 50, 55));
  EXPECT_THAT(CheckpointsOf(boundaries, 0, 60, 10), ElementsAre(10, 30, 50, 55));
  EXPECT_THAT(CheckpointsOf(boundaries, 30, 60, 10), ElementsAre(50, 55));
  EXPECT_THAT(CheckpointsOf(boundaries, 30, 60, 1000), ElementsAre(55));
  EXPECT_THAT(CheckpointsOf(boundaries, 0, 55, 10), ElementsAre(10, 30, 50));
  EXPECT_THAT(CheckpointsOf(boundaries, 55, 60, 1), IsEmpty());
}

TEST(CheckpointsOfTest, NonsenseIsPassedOver) {
  const std::vector<std::size_t> boundaries = {0, 5, 5, 3, 900};
  EXPECT_THAT(CheckpointsOf(boundaries, 0, 60, 1), ElementsAre(5));
  EXPECT_THAT(CheckpointsOf({}, 0, 60, 1), IsEmpty());
}

}  // namespace
}  // namespace engine
