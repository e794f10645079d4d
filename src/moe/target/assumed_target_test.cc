#include "moe/target/assumed_target.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace moe {
namespace {

using base::Bytes;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(AssumedTargetTest, ReadsSpeedsAndMemory) {
  const auto assumed =
      ParseAssumedTargets("rocm:0=900GB/s@24GiB, cpu=0.5KiB/s,worker(cpu:1)=7/s@64GiB");
  ASSERT_TRUE(assumed) << assumed.error().message;
  EXPECT_THAT(*assumed,
              ElementsAre(AssumedTarget{"hip:0", Bytes(900'000'000'000), Bytes::GiB(24), false},
                          AssumedTarget{"cpu", Bytes(512), std::nullopt, true},
                          AssumedTarget{"worker(cpu:1)", Bytes(7), Bytes::GiB(64), false}));
  EXPECT_EQ(FindAssumed(*assumed, "cpu"), &(*assumed)[1]);
  EXPECT_EQ(FindAssumed(*assumed, "cuda:0"), nullptr);
  EXPECT_TRUE(ParseAssumedTargets("")->empty());
}

TEST(AssumedTargetTest, NonsenseIsNamedWithItsPlaceAndWhatIsAccepted) {
  const std::pair<std::string, std::string> cases[] = {
      {"cpu", "item 1 \"cpu\": no speed"},
      {"cpu=1GB/s,", "item 2 \"\": no speed"},
      {",", "item 1 \"\""},
      {"gpu:0=1GB/s", "item 1 \"gpu:0=1GB/s\": unknown kind"},
      {"cpu=fast", "speed \"fast\" does not end in /s"},
      {"cpu=900GB", "speed \"900GB\" does not end in /s"},
      {"cpu=fast/s", "speed: "},
      {"cpu=0/s", "speed \"0\" is 0"},
      {"cpu=0.1B/s", "speed \"0.1B\" is 0"},
      {"cpu=-1GB/s", "speed: "},
      {"cpu=1e9/s", "speed: "},
      {"cpu=nan/s", "speed: "},
      {"cpu=/s", "speed: "},
      {"cpu=1GB/s@", "memory: "},
      {"cpu=1GB/s@0", "memory \"0\" is 0"},
      {"cpu=1GB/s@20G", "memory: "},
      {"cpu=99999999999TiB/s", "speed: "},
      {"cuda:0=1GB/s,cuda:0=2GB/s", "item 2 \"cuda:0=2GB/s\": cuda:0 is assumed twice"},
  };
  for (const auto& [list, part] : cases) {
    SCOPED_TRACE(list);
    const auto assumed = ParseAssumedTargets(list);
    ASSERT_FALSE(assumed);
    EXPECT_EQ(assumed.error().kind, base::ErrorKind::kInvalidInput);
    EXPECT_THAT(assumed.error().message, HasSubstr("--assume item "));
    EXPECT_THAT(assumed.error().message, HasSubstr(part));
    EXPECT_THAT(assumed.error().message, Not(HasSubstr("\n")));
  }
}

class Machine final : public MemoryProbe {
 public:
  std::optional<TargetMemory> Target(const ExpertSplitTarget& target) override {
    if (target.name != "cuda:0") return std::nullopt;
    return TargetMemory{.free = Bytes(1), .total = Bytes(2)};
  }
  HostMemory Host() override { return {.available = Bytes(3), .total = Bytes(4)}; }
  std::vector<std::string> PresentTargets() override { return {"cuda:0", "cpu"}; }
};

TEST(AssumedTargetTest, AssumedMemoryStandsInForTheMachines) {
  Machine machine;
  const auto config = ExpertSplitTargetConfig::Parse("cuda:0,cuda:1,hip:0,cpu");
  const auto some = *ParseAssumedTargets("cuda:0=1GB/s,cuda:1=1GB/s@8GiB,cpu=1GB/s");
  AssumedMemoryProbe probe(machine, some);
  EXPECT_EQ(probe.Target((*config)[TargetId(0)])->free, Bytes(1));
  EXPECT_EQ(probe.Target((*config)[TargetId(1)])->free, Bytes::GiB(8));
  EXPECT_EQ(probe.Target((*config)[TargetId(2)]), std::nullopt);
  EXPECT_EQ(probe.Host().available, Bytes(3));
  EXPECT_THAT(probe.PresentTargets(), ElementsAre("cuda:0", "cpu"));

  const auto host = *ParseAssumedTargets("cpu=1GB/s@64GiB");
  EXPECT_EQ(AssumedMemoryProbe(machine, host).Host().available, Bytes::GiB(64));
}

}  // namespace
}  // namespace moe
