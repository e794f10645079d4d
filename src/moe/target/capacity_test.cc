#include "moe/target/capacity.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <string_view>
#include <utility>

namespace moe {
namespace {

using base::Bytes;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Capacities = std::vector<std::optional<Bytes>>;

constexpr Bytes GiB(std::uint64_t n) { return Bytes::GiB(n); }

class FakeProbe : public MemoryProbe {
 public:
  std::optional<TargetMemory> Target(const ExpertSplitTarget& target) override {
    const auto found = memory.find(target.name);
    if (found == memory.end()) return std::nullopt;
    return found->second;
  }
  HostMemory Host() override { return host; }
  std::vector<std::string> PresentTargets() override {
    std::vector<std::string> names;
    for (const auto& [name, unused] : memory) names.push_back(name);
    names.push_back("cpu");
    return names;
  }

  std::map<std::string, TargetMemory> memory;
  HostMemory host{.available = GiB(48), .total = GiB(64)};
};

// A model of 100 GiB of units whose dense part takes 1 + 2 + 3 + 4 GiB, owners' buffers of 1 GiB
// and a margin of 1 GiB, so that every term of a sum shows.
class CapacityTest : public ::testing::Test {
 protected:
  base::Result<Capacities> Resolve(std::string_view list) {
    base::Result<ExpertSplitTargetConfig> config = ExpertSplitTargetConfig::Parse(list);
    EXPECT_TRUE(config.has_value()) << config.error().message;
    request.config = &*config;
    return ResolveCapacities(request, probe);
  }
  Capacities Get(std::string_view list) {
    base::Result<Capacities> capacities = Resolve(list);
    EXPECT_TRUE(capacities.has_value()) << capacities.error().message;
    return capacities ? *capacities : Capacities();
  }
  base::Error ErrorOf(std::string_view list) {
    base::Result<Capacities> capacities = Resolve(list);
    EXPECT_FALSE(capacities.has_value()) << list;
    return capacities ? base::Error() : capacities.error();
  }

  FakeProbe probe;
  CapacityRequest request{
      .config = nullptr,
      .unit_bytes = GiB(100),
      .dense = {.weights = GiB(1),
                .kv_cache = GiB(2),
                .recurrent_state = GiB(3),
                .compute_buffers = GiB(4)},
      .owner_buffers = GiB(1),
      .cpu_units = CpuUnits::kMapped,
      .safety_margin = GiB(1),
  };
};

TEST_F(CapacityTest, AutoIsWhatIsFreeAfterTheDensePartOnThePrimaryAndBuffersElsewhere) {
  probe.memory["cuda:0"] = {.free = GiB(30), .total = GiB(32), .device_id = "a"};
  probe.memory["cuda:1"] = {.free = GiB(20), .total = GiB(24), .device_id = "b"};
  EXPECT_THAT(Get("cuda:0,cuda:1,cpu"),
              ElementsAre(GiB(30 - 10 - 1), GiB(20 - 1 - 1), std::nullopt));
  EXPECT_THAT(Get("cuda:1,cuda:0,cpu"),
              ElementsAre(GiB(20 - 10 - 1), GiB(30 - 1 - 1), std::nullopt));
}

TEST_F(CapacityTest, FixedSizesAndPercentagesStandAsTheyAre) {
  probe.memory["cuda:0"] = {.free = GiB(30), .total = GiB(32), .device_id = "a"};
  EXPECT_THAT(Get("cuda:0=2GiB,cpu=500GiB"), ElementsAre(GiB(2), GiB(500)));
  EXPECT_THAT(Get("cuda:0=25%,cpu=100%"), ElementsAre(GiB(25), GiB(100)));
  request.unit_bytes = Bytes(10);
  EXPECT_THAT(Get("cuda:0=0%,cpu=19.999999%"), ElementsAre(Bytes(0), Bytes(1)));
  request.unit_bytes = Bytes::Max();
  EXPECT_THAT(Get("cuda:0=100%,cpu"), ElementsAre(Bytes::Max(), std::nullopt));
}

TEST_F(CapacityTest, MoreFreeThanTotalCountsAsTotal) {
  probe.memory["cuda:0"] = {.free = Bytes::Max(), .total = GiB(24), .device_id = "a"};
  EXPECT_THAT(Get("cuda:0,cpu"), ElementsAre(GiB(24 - 10 - 1), std::nullopt));
  request.cpu_units = CpuUnits::kCopied;
  probe.host = {.available = GiB(99), .total = GiB(64)};
  EXPECT_THAT(Get("cpu"), ElementsAre(GiB(64 - 10 - 1)));
}

TEST_F(CapacityTest, NothingFreeGivesZeroAndNeverWraps) {
  probe.memory["cuda:0"] = {.free = GiB(10), .total = GiB(24), .device_id = "a"};
  probe.memory["cuda:1"] = {.free = Bytes(), .total = GiB(24), .device_id = "b"};
  probe.memory["cuda:2"] = {.free = Bytes(), .total = Bytes(), .device_id = "c"};
  EXPECT_THAT(Get("cuda:0,cuda:1,cuda:2,cpu"),
              ElementsAre(Bytes(), Bytes(), Bytes(), std::nullopt));
}

TEST_F(CapacityTest, DensePartThatDoesNotFitNamesDeviceNeedHaveAndRemedy) {
  probe.memory["cuda:1"] = {.free = GiB(9), .total = GiB(24), .device_id = "a"};
  for (const std::string_view list : {"cuda:1,cpu", "cuda:1=4GiB,cpu"}) {
    const base::Error error = ErrorOf(list);
    EXPECT_EQ(error.kind, base::ErrorKind::kCapacity);
    EXPECT_THAT(error.message, HasSubstr("target \"cuda:1\" needs 10.0 GiB for the dense part"));
    EXPECT_THAT(error.message, HasSubstr("weights 1.0 GiB, KV cache 2.0 GiB, recurrent state 3.0 "
                                         "GiB, compute buffers 4.0 GiB"));
    EXPECT_THAT(error.message, HasSubstr("has 9.0 GiB free of 24.0 GiB"));
    EXPECT_THAT(error.message, HasSubstr("lower --ctx or --parallel"));
  }
}

TEST_F(CapacityTest, DensePartNeedSaturates) {
  probe.memory["cuda:0"] = {.free = GiB(24), .total = GiB(24), .device_id = "a"};
  request.dense.kv_cache = Bytes::Max();
  EXPECT_EQ(ErrorOf("cuda:0,cpu").kind, base::ErrorKind::kCapacity);
  EXPECT_EQ(ErrorOf("cpu").kind, base::ErrorKind::kCapacity);
}

TEST_F(CapacityTest, OtherTermsSaturateToo) {
  probe.memory["cuda:0"] = {.free = GiB(24), .total = GiB(24), .device_id = "a"};
  probe.memory["cuda:1"] = {.free = GiB(24), .total = GiB(24), .device_id = "b"};
  request.safety_margin = Bytes::Max();
  request.owner_buffers = Bytes::Max();
  EXPECT_THAT(Get("cuda:0,cuda:1,cpu=18446744073709551615"),
              ElementsAre(Bytes(), Bytes(), Bytes::Max()));
}

TEST_F(CapacityTest, SameSiliconUnderTwoNamesIsCountedOnce) {
  probe.memory["cuda:0"] = {.free = GiB(30), .total = GiB(32), .device_id = "0000:01:00.0"};
  probe.memory["vulkan:0"] = {.free = GiB(28), .total = GiB(32), .device_id = "0000:01:00.0"};
  // The smaller report counts: 28 - 10 dense - 1 margin - 1 buffers of the second owner.
  EXPECT_THAT(Get("cuda:0,vulkan:0,cpu"), ElementsAre(GiB(16), Bytes(), std::nullopt));
  EXPECT_THAT(Get("cuda:0,vulkan:0=6GiB,cpu"), ElementsAre(GiB(10), GiB(6), std::nullopt));
  EXPECT_THAT(Get("cuda:0=6GiB,vulkan:0,cpu"), ElementsAre(GiB(6), GiB(10), std::nullopt));
  request.unit_bytes = GiB(12);
  EXPECT_THAT(Get("cuda:0,vulkan:0,cpu"), ElementsAre(GiB(12), GiB(4), std::nullopt));
}

TEST_F(CapacityTest, UnknownIdentityIsNoSharedSilicon) {
  probe.memory["cuda:0"] = {.free = GiB(30), .total = GiB(32), .device_id = ""};
  probe.memory["vulkan:0"] = {.free = GiB(30), .total = GiB(32), .device_id = ""};
  EXPECT_THAT(Get("cuda:0,vulkan:0,cpu"), ElementsAre(GiB(19), GiB(28), std::nullopt));
}

TEST_F(CapacityTest, RepeatedWorkersOfOneDeviceShareItWithoutAnIdentity) {
  probe.memory["worker(vulkan:0)"] = {.free = GiB(20), .total = GiB(24), .device_id = ""};
  probe.memory["worker(vulkan:0)#2"] = {.free = GiB(20), .total = GiB(24), .device_id = ""};
  EXPECT_THAT(Get("worker(vulkan:0),worker(vulkan:0),cpu"),
              ElementsAre(GiB(20 - 1 - 2), Bytes(), std::nullopt));
}

TEST_F(CapacityTest, DevicesWhoseTotalIsTheHostsShareItsBudget) {
  // Two software devices on the host's 64 GiB, 48 available.
  probe.memory["vulkan:0"] = {.free = GiB(60), .total = GiB(64), .device_id = "x"};
  probe.memory["vulkan:1"] = {.free = GiB(60), .total = GiB(64), .device_id = "y"};
  request.cpu_units = CpuUnits::kCopied;
  // 48 - 10 dense - 1 margin - 2 owners' buffers.
  EXPECT_THAT(Get("vulkan:0,vulkan:1,cpu"), ElementsAre(GiB(35), Bytes(), Bytes()));
  EXPECT_THAT(Get("vulkan:0=5GiB,vulkan:1,cpu=8GiB"), ElementsAre(GiB(5), GiB(22), GiB(8)));
  EXPECT_THAT(Get("vulkan:0=5GiB,cpu"), ElementsAre(GiB(5), GiB(48 - 10 - 1 - 1 - 5)));
  request.cpu_units = CpuUnits::kMapped;
  EXPECT_THAT(Get("vulkan:0,vulkan:1,cpu"), ElementsAre(GiB(35), Bytes(), std::nullopt));
}

TEST_F(CapacityTest, DensePartOnASharedDeviceIsBoundByTheHostToo) {
  probe.memory["vulkan:0"] = {.free = GiB(60), .total = GiB(64), .device_id = "x"};
  probe.host.available = GiB(8);
  const base::Error error = ErrorOf("vulkan:0,cpu");
  EXPECT_EQ(error.kind, base::ErrorKind::kCapacity);
  EXPECT_THAT(error.message, HasSubstr("has 8.0 GiB free of 64.0 GiB"));
}

TEST_F(CapacityTest, ADeviceThatSaysSoSharesTheHostsBudgetWhateverItsTotal) {
  probe.memory["vulkan:0"] = {
      .free = GiB(30), .total = GiB(32), .device_id = "x", .shares_host_ram = true};
  request.cpu_units = CpuUnits::kCopied;
  // Its own 30 bound it; the host has 48.
  EXPECT_THAT(Get("vulkan:0,cpu"), ElementsAre(GiB(30 - 10 - 1), GiB(48 - 10 - 1 - 1 - 19)));
}

TEST_F(CapacityTest, ARemoteWithTheSameTotalHasItsOwnMemory) {
  probe.memory["rpc:twin:1"] = {.free = GiB(60), .total = GiB(64), .device_id = "0000:01:00.0"};
  probe.memory["rpc:other:1"] = {.free = GiB(60), .total = GiB(64), .device_id = "0000:01:00.0"};
  request.cpu_units = CpuUnits::kCopied;
  EXPECT_THAT(Get("rpc:twin:1,rpc:other:1,cpu"), ElementsAre(GiB(58), GiB(58), GiB(48 - 10 - 1)));
  probe.memory["rpc:127.0.0.1:1"] = {.free = GiB(60), .total = GiB(64), .device_id = ""};
  EXPECT_THAT(Get("rpc:127.0.0.1:1,cpu"), ElementsAre(GiB(48 - 10 - 1 - 1), Bytes()));
}

TEST_F(CapacityTest, MappedCpuIsUnboundedAndItsDenseWeightsCostNothing) {
  EXPECT_THAT(Get("cpu"), ElementsAre(std::nullopt));
  EXPECT_THAT(Get("worker(cpu),cpu"), ElementsAre(std::nullopt, std::nullopt));
  probe.host.available = GiB(9);
  EXPECT_THAT(Get("cpu"), ElementsAre(std::nullopt));
  request.cpu_units = CpuUnits::kCopied;
  const base::Error error = ErrorOf("cpu");
  EXPECT_EQ(error.kind, base::ErrorKind::kCapacity);
  EXPECT_THAT(error.message, HasSubstr("put a device with more memory first"));
}

TEST_F(CapacityTest, CopiedCpuUnitsAreBoundByFreeRamOnce) {
  request.cpu_units = CpuUnits::kCopied;
  EXPECT_THAT(Get("cpu"), ElementsAre(GiB(48 - 10 - 1)));
  EXPECT_THAT(Get("worker(cpu)=7GiB,cpu"), ElementsAre(GiB(7), GiB(48 - 10 - 1 - 1 - 7)));
}

TEST_F(CapacityTest, ANodeIsBoundByItsOwnMemoryAndByTheHosts) {
  probe.memory["cpu:0"] = {.free = GiB(28), .total = GiB(32), .device_id = ""};
  probe.memory["cpu:1"] = {.free = GiB(28), .total = GiB(32), .device_id = ""};
  // 28 - 9 dense (weights mapped) - 1 margin; then 48 - 9 - 1 margin - 1 buffers - 18.
  EXPECT_THAT(Get("cpu:0,cpu:1"), ElementsAre(GiB(18), GiB(19)));
}

TEST_F(CapacityTest, AbsentDevicesPlanWithASize) {
  EXPECT_THAT(Get("cuda:0=20GiB,hip:0=10GiB,rpc:h:1=1GiB,cpu"),
              ElementsAre(GiB(20), GiB(10), GiB(1), std::nullopt));
}

TEST_F(CapacityTest, AbsentDevicesNeedASizeAlsoWithAPercentage) {
  for (const char* list : {"hip:0=10%,cpu", "cpu,worker(hip:0)=100%", "cpu,hip:0=0%"}) {
    const base::Error error = ErrorOf(list);
    EXPECT_EQ(error.kind, base::ErrorKind::kInvalidInput);
    EXPECT_THAT(error.message, HasSubstr("hip:0")) << list;
    EXPECT_THAT(error.message, HasSubstr("present are cpu")) << list;
  }
  EXPECT_THAT(Get("worker(cpu)=10%,cpu=90%"), ElementsAre(GiB(10), GiB(90)));
}

TEST_F(CapacityTest, AbsentDevicesWithAutoAreNamedBesideThePresentOnes) {
  probe.memory["vulkan:0"] = {.free = GiB(20), .total = GiB(24), .device_id = "a"};
  const base::Error error = ErrorOf("vulkan:0,hip:0,cpu");
  EXPECT_EQ(error.kind, base::ErrorKind::kInvalidInput);
  EXPECT_THAT(error.message, HasSubstr("target list item 2 \"hip:0\": missing device"));
  EXPECT_THAT(error.message, HasSubstr("present are vulkan:0, cpu"));
  EXPECT_THAT(error.message, HasSubstr("hip:0=16GiB"));
}

}  // namespace
}  // namespace moe
