#include "moe/compute/multi_compute.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <latch>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "moe/compute/fake_family.h"

namespace moe {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// Computes on a thread of its own, as a worker process would: Begin starts it, Finish joins it.
// With a latch nothing is computed before as many owners as it counts have begun.
class ElsewhereOwner final : public MoeExpertCompute {
 public:
  struct Faults {
    bool begin = false;
    bool finish = false;
  };

  ElsewhereOwner(std::string name, std::unique_ptr<MoeExpertCompute> inner,
                 std::vector<std::string>* events, std::latch* all_begun = nullptr)
      : name_(std::move(name)), inner_(std::move(inner)), events_(events), all_begun_(all_begun) {}
  ~ElsewhereOwner() override {
    if (thread_.joinable()) thread_.join();
  }

  base::Result<void> Begin(const ExpertBatch& batch) override {
    events_->push_back("begin " + name_);
    if (faults.begin) return base::Fail(base::ErrorKind::kWorkerLost, "{} is gone", name_);
    if (all_begun_ != nullptr) all_begun_->count_down();
    thread_ = std::thread([this, batch] {
      if (all_begun_ != nullptr) all_begun_->wait();
      static_cast<void>(inner_->Begin(batch));
      inner_->Prepare({});
      inner_->Expand({});
      inner_->Reduce({});
      static_cast<void>(inner_->Finish());
    });
    return {};
  }
  void Prepare(TeamThread) override { events_->push_back("prepare " + name_); }
  void Expand(TeamThread) override { events_->push_back("expand " + name_); }
  void Reduce(TeamThread) override { events_->push_back("reduce " + name_); }
  base::Result<void> Finish() override {
    events_->push_back("finish " + name_);
    if (all_begun_ != nullptr && !all_begun_->try_wait()) {
      // Waiting now would never end: let the thread go and report.
      while (!all_begun_->try_wait()) all_begun_->count_down();
      thread_.join();
      return base::Fail(base::ErrorKind::kInternal, "{} is waited for too early", name_);
    }
    thread_.join();
    if (faults.finish) return base::Fail(base::ErrorKind::kTimeout, "{} is late", name_);
    return {};
  }
  ExpertPart part(std::size_t index) const override { return inner_->part(index); }
  std::size_t num_parts() const override { return 1; }
  std::uint64_t num_pairs(std::size_t index) const override { return inner_->num_pairs(index); }

  Faults faults;

 private:
  std::string name_;
  std::unique_ptr<MoeExpertCompute> inner_;
  std::vector<std::string>* events_;
  std::latch* all_begun_;
  std::thread thread_;
};

// The fake family over three workers and the CPU, one reference owner each.
class MultiTargetComputeTest : public testing::Test {
 protected:
  MultiTargetComputeTest() { Place({0, 1, 2, 3, 1, 2, 2, 2, 2, 2, 3, 0, 0, 1, 3}); }

  void Place(std::vector<std::uint8_t> owners) {
    runtime_ = ExpertSplitRuntime::Make(PlanOf(family_, config_, std::move(owners)));
  }

  std::unique_ptr<MoeExpertCompute> Reference(std::size_t target,
                                              PartForm form = PartForm::kPairs) {
    // The family outlives every owner.
    return std::make_unique<ReferenceCompute>(
        std::shared_ptr<const FloatExpertWeights>(std::shared_ptr<void>(), &family_), runtime_,
        TargetId(target), form);
  }

  MultiTargetCompute Make(std::latch* all_begun = nullptr) {
    std::vector<MultiTargetCompute::Owner> owners;
    elsewhere_.clear();
    for (std::size_t t = 0; t < 3; ++t) {
      auto owner =
          std::make_unique<ElsewhereOwner>(std::to_string(t), Reference(t), &events_, all_begun);
      elsewhere_.push_back(owner.get());
      owners.push_back({.target = TargetId(t), .compute = std::move(owner)});
    }
    owners.push_back({.target = TargetId(3), .compute = Reference(3)});
    return MultiTargetCompute(runtime_, std::move(owners));
  }

  // What one owner of everything computes.
  std::vector<float> Single(const FakeBatch& batch) {
    const auto config = ConfigOf("cpu");
    ReferenceCompute single(
        std::shared_ptr<const FloatExpertWeights>(std::shared_ptr<void>(), &family_),
        ExpertSplitRuntime::Make(
            PlanOf(family_, config, std::vector<std::uint8_t>(kFakeLayers * kFakeExperts, 0))),
        TargetId(0));
    return *batch.Run(single, 1);
  }

  FakeFamily family_{1};
  ExpertSplitTargetConfig config_ = ConfigOf("worker(cpu),worker(cpu),worker(cpu),cpu");
  std::shared_ptr<const ExpertSplitRuntime> runtime_;
  std::vector<std::string> events_;
  std::vector<ElsewhereOwner*> elsewhere_;  // of the last Make
};

TEST_F(MultiTargetComputeTest, BeginsEveryOwnerBeforeItWaitsForAny) {
  std::latch all_begun(3);
  MultiTargetCompute multi = Make(&all_begun);
  const FakeBatch batch(LayerId(0), 40, 1);
  const auto out = batch.Run(multi, 2);
  ASSERT_TRUE(out.has_value()) << out.error().message;
  EXPECT_EQ(*out, Single(batch));
}

TEST_F(MultiTargetComputeTest, CallsOwnersInPhasesAndInTargetOrder) {
  MultiTargetCompute multi = Make();
  ASSERT_TRUE(FakeBatch(LayerId(0), 40, 1).Run(multi, 1).has_value());
  EXPECT_THAT(events_, ElementsAre("begin 0", "begin 1", "begin 2", "prepare 0", "prepare 1",
                                   "prepare 2", "expand 0", "expand 1", "expand 2", "reduce 0",
                                   "reduce 1", "reduce 2", "finish 0", "finish 1", "finish 2"));
}

TEST_F(MultiTargetComputeTest, PassesEveryThreadOfTheTeamOn) {
  MultiTargetCompute multi = Make();
  const FakeBatch batch(LayerId(0), 9, 1);
  ASSERT_TRUE(batch.Run(multi, 3).has_value());
  EXPECT_EQ(std::ranges::count(events_, "reduce 1"), 3);
}

TEST_F(MultiTargetComputeTest, FinishesEveryOwnerWhenSomeFailAndReturnsTheFirstError) {
  MultiTargetCompute multi = Make();
  elsewhere_[1]->faults.finish = true;
  elsewhere_[2]->faults.finish = true;
  const FakeBatch batch(LayerId(0), 40, 1);
  const auto failed = batch.Run(multi, 1);
  ASSERT_FALSE(failed.has_value());
  EXPECT_EQ(failed.error().kind, base::ErrorKind::kTimeout);
  EXPECT_EQ(failed.error().message, "1 is late");
  EXPECT_EQ(std::ranges::count(events_, "finish 2"), 1);
  EXPECT_NE(multi.part(0).pairs, nullptr);
  EXPECT_EQ(multi.part(1).pairs, nullptr);
  EXPECT_EQ(multi.part(2).pairs, nullptr);
  EXPECT_NE(multi.part(3).pairs, nullptr);
  EXPECT_EQ(multi.num_pairs(1), 0u);

  elsewhere_[1]->faults.finish = false;
  elsewhere_[2]->faults.finish = false;
  const auto out = batch.Run(multi, 1);
  ASSERT_TRUE(out.has_value()) << out.error().message;
  EXPECT_EQ(*out, Single(batch));
}

TEST_F(MultiTargetComputeTest, LeavesNothingInFlightWhenAnOwnerCannotBegin) {
  MultiTargetCompute multi = Make();
  elsewhere_[1]->faults.begin = true;
  const FakeBatch batch(LayerId(0), 40, 1);
  const auto failed = batch.Run(multi, 1);
  ASSERT_FALSE(failed.has_value());
  EXPECT_EQ(failed.error().kind, base::ErrorKind::kWorkerLost);
  EXPECT_EQ(failed.error().message, "1 is gone");
  EXPECT_THAT(events_, ElementsAre("begin 0", "begin 1", "begin 2", "finish 0", "finish 2"));
  for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(multi.num_pairs(i), 0u);

  elsewhere_[1]->faults.begin = false;
  const auto out = batch.Run(multi, 1);
  ASSERT_TRUE(out.has_value()) << out.error().message;
  EXPECT_EQ(*out, Single(batch));
}

TEST_F(MultiTargetComputeTest, DoesNotCallAnOwnerWithoutARowOfTheBatch) {
  MultiTargetCompute multi = Make();
  // Of layer 0, owner 1 holds experts 1 and 4, owner 3 expert 3.
  const FakeBatch batch(LayerId(0), 10, 1, {ExpertId(1), ExpertId(4), ExpertId(3)});
  const auto out = batch.Run(multi, 1);
  ASSERT_TRUE(out.has_value()) << out.error().message;
  EXPECT_EQ(*out, Single(batch));
  EXPECT_THAT(events_, ElementsAre("begin 1", "prepare 1", "expand 1", "reduce 1", "finish 1"));
  EXPECT_EQ(multi.part(0).pairs, nullptr);
}

TEST_F(MultiTargetComputeTest, ForgetsTheLastBatchOfAnOwnerThatIsNotCalled) {
  MultiTargetCompute multi = Make();
  ASSERT_TRUE(FakeBatch(LayerId(0), 40, 1).Run(multi, 1).has_value());
  ASSERT_NE(multi.part(0).pairs, nullptr);
  const FakeBatch batch(LayerId(1), 40, 2);  // all of it is owner 2's
  const auto out = batch.Run(multi, 1);
  ASSERT_TRUE(out.has_value()) << out.error().message;
  EXPECT_EQ(multi.part(0).pairs, nullptr);
  EXPECT_EQ(multi.part(3).pairs, nullptr);
  EXPECT_EQ(*out, Single(batch));
}

TEST_F(MultiTargetComputeTest, CallsNobodyForABatchWithoutRows) {
  MultiTargetCompute multi = Make();
  const auto out = FakeBatch(LayerId(0), 0, 1).Run(multi, 2);
  ASSERT_TRUE(out.has_value()) << out.error().message;
  EXPECT_THAT(*out, IsEmpty());
  EXPECT_THAT(events_, IsEmpty());
  for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(multi.part(i).pairs, nullptr);
}

TEST_F(MultiTargetComputeTest, CountsThePairsOfEachOwner) {
  MultiTargetCompute multi = Make();
  std::vector<std::uint64_t> expected(4);
  for (std::size_t l = 0; l < kFakeLayers; ++l) {
    const FakeBatch batch(LayerId(l), 30, static_cast<std::uint32_t>(l));
    ASSERT_TRUE(batch.Run(multi, 1).has_value());
    for (std::size_t p = 0; p < 30 * kFakeUsed; ++p) {
      const ExpertId expert(static_cast<std::size_t>(batch.batch().ids[p]));
      ++expected[runtime_->place(LayerId(l), expert).owner.index()];
    }
  }
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(multi.num_pairs(i), expected[i]) << i;
    EXPECT_EQ(multi.target(i), TargetId(i));
  }
}

TEST_F(MultiTargetComputeTest, RefusesABatchOfATargetThatHasNoObject) {
  std::vector<MultiTargetCompute::Owner> owners;
  owners.push_back({.target = TargetId(0), .compute = Reference(0)});
  owners.push_back({.target = TargetId(3), .compute = Reference(3)});
  MultiTargetCompute multi(runtime_, std::move(owners));
  const auto failed = FakeBatch(LayerId(0), 4, 1, {ExpertId(0), ExpertId(2)}).Run(multi, 1);
  ASSERT_FALSE(failed.has_value());
  EXPECT_EQ(failed.error().kind, base::ErrorKind::kInternal);
  EXPECT_THAT(failed.error().message, HasSubstr("4 of 8 expert rows of layer 0"));
  EXPECT_TRUE(FakeBatch(LayerId(0), 4, 1, {ExpertId(0), ExpertId(3)}).Run(multi, 1).has_value());
}

TEST_F(MultiTargetComputeTest, MixesOwnersOfPairsAndOfSums) {
  for (const std::size_t layer : {0, 1, 2}) {
    std::vector<MultiTargetCompute::Owner> owners;
    for (std::size_t t = 0; t < 4; ++t) {
      const PartForm form = t % 2 == 0 ? PartForm::kSums : PartForm::kPairs;
      owners.push_back({.target = TargetId(t), .compute = Reference(t, form)});
    }
    MultiTargetCompute multi(runtime_, std::move(owners));
    const FakeBatch batch(LayerId(layer), 20, 1);
    const auto out = batch.Run(multi, 2);
    ASSERT_TRUE(out.has_value()) << out.error().message;
    const std::vector<float> single = Single(batch);
    for (std::size_t i = 0; i < single.size(); ++i) {
      // Two terms of magnitude below 64, rounded at most three times.
      EXPECT_NEAR((*out)[i], single[i], 3 * 64 * 0x1p-24f) << "layer " << layer << " at " << i;
    }
  }
}

}  // namespace
}  // namespace moe
