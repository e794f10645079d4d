// Runs on two Vulkan devices of one software driver; the memory of a device is a seam.
#include "moe/compute/expert_loader.h"

#include <ggml.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "moe/compute/packed_experts.h"
#include "moe/compute/test_experts.h"
#include "moe/plan/placement_path.h"

namespace moe {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr std::size_t kLayers = 3;
constexpr std::size_t kExperts = 6;
constexpr std::size_t kUsed = 2;
constexpr base::Bytes kOversized = base::Bytes::GiB(8);

class ExpertLoaderTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto devices = gg::DiscoverDevices();
    ASSERT_TRUE(devices) << devices.error().message;
    devices_ = std::move(*devices);
    if (gg::FindDevice(devices_, "vulkan:1") == nullptr) {
      GTEST_SKIP() << "needs GGML_VK_VISIBLE_DEVICES=0,0 (set by ctest) and a Vulkan driver";
    }
    UseType(GGML_TYPE_F32);
  }

  void UseType(int type) {
    test_shape_ = ShapeOfType(type);
    test_shape_.num_layers = kLayers;
    test_shape_.num_experts = kExperts;
    TestModel model(test_shape_, kUsed);
    experts_ = std::move(model.experts);
    shape_ = std::move(model.shape);
    stacks_ = std::move(model.stacks);
    unit_ = shape_.unit_bytes(LayerId(0));
  }

  // Plans `list`, whose capacities are in units, and loads it.
  base::Result<LoadedExperts> Load(const std::string& names,
                                   std::vector<std::optional<std::size_t>> capacities) {
    config_ = std::make_unique<ExpertSplitTargetConfig>(*ExpertSplitTargetConfig::Parse(names));
    hotness_ = std::make_unique<Hotness>(Hotness::Uniform(shape_));
    PlanRequest request{.shape = &shape_, .hotness = hotness_.get()};
    std::vector<gg::Device> owners;
    for (std::size_t t = 0; t < config_->size(); ++t) {
      const std::string& name = config_->targets()[t].name;
      request.targets.push_back(
          {name, capacities[t] ? std::optional(unit_ * *capacities[t]) : std::nullopt});
      owners.push_back(*gg::FindDevice(devices_, name.starts_with("cpu") ? "cpu" : name));
    }
    auto plan = ExpertSplitPlan::Make(request);
    if (!plan) return base::Forward(plan);
    return LoadExperts(
        {.config = config_.get(),
         .shape = &shape_,
         .hotness = hotness_.get(),
         .plan = &*plan,
         .stacks = &stacks_,
         .weights = experts_->weights(),
         .devices = std::move(owners),
         .max_rows = 8,
         .repack = repack_,
         .pack_threads = 2,
         .keep_on_primary = keep_on_primary_,
         .allocate = [this](const gg::Context& context,
                            ggml_backend_buffer_type_t type) { return Allocate(context, type); },
         .untouched_bytes = untouched_,
         .packing_memory = {.available = [this] { return available_; },
                            .allocate = [this](base::Bytes size) { return AllocatePacked(size); }},
         .log = base::Log([this](base::LogLevel level, std::string_view message) {
           if (level == base::LogLevel::kWarning) warnings_.emplace_back(message);
           if (level == base::LogLevel::kInfo) lines_.emplace_back(message);
         }),
         .progress =
             [this](TargetId, base::Bytes done, base::Bytes total) {
               done_ = done;
               total_ = total;
             }});
  }

  // Devices whose name is in room_ have room for that many more units.
  base::Result<gg::Buffer> Allocate(const gg::Context& context, ggml_backend_buffer_type_t type) {
    const std::string name = ggml_backend_buft_name(type);
    if (name == oversized_) {
      // What the driver answers to a buffer that is too large for it, in place of the layer's own.
      auto refused = gg::Buffer::Allocate(type, kOversized);
      if (!refused) return base::Forward(refused);
    }
    if (const auto room = room_.find(name); room != room_.end()) {
      std::size_t bytes = 0;
      for (ggml_tensor* tensor = ggml_get_first_tensor(context.get()); tensor != nullptr;
           tensor = ggml_get_next_tensor(context.get(), tensor)) {
        bytes += ggml_nbytes(tensor);
      }
      const std::size_t units = (bytes + unit_.count() - 1) / unit_.count();
      if (units > room->second) {
        return base::Fail(base::ErrorKind::kCapacity, "{} has no room for {} bytes", name, bytes);
      }
      room->second -= units;
    }
    return gg::Buffer::ForContext(context, type);
  }

  base::Result<kernels::PackedMemory> AllocatePacked(base::Bytes size) {
    if (packings_ == 0) {
      return base::Fail(base::ErrorKind::kCapacity, "no memory for {} bytes", size.count());
    }
    --packings_;
    return kernels::PackedMemory::Allocate(size);
  }

  // What CPU owners need to have their units of `num_layers` layers packed.
  base::Bytes NeedOf(std::size_t num_layers) const {
    const base::Bytes packed =
        *PackedExperts::RunBytes(experts_->weights()->layers[0]) * kExperts * num_layers;
    // Buffers of a batch of 8 rows: two rows a row, and of each expert twice the hidden vector and
    // the output.
    const std::size_t floats =
        8 * (2 * test_shape_.n_embd + kUsed * (2 * test_shape_.n_ff + test_shape_.n_embd));
    return packed + PackingMargin(packed) + base::Bytes(floats * sizeof(float));
  }

  // Every layer's output for some rows against double precision.
  void ExpectRightNumbers(const LoadedExperts& loaded, double nmse = 1e-6) {
    MoeExpertCompute* routed = loaded.components->compute().routed();
    ASSERT_NE(routed, nullptr);
    const TestBatch batch(test_shape_, 7, kUsed);
    for (std::size_t l = 0; l < kLayers; ++l) {
      const ExpertBatch one = batch.batch(LayerId(l));
      EXPECT_LT(Nmse(RunBatch(*routed, one, 2), Reference(*experts_, one)), nmse) << "layer " << l;
    }
  }

  std::vector<gg::Device> devices_;
  TestExpertShape test_shape_ = ShapeOfType(GGML_TYPE_F32);
  std::unique_ptr<TestExperts> experts_;
  ModelShape shape_;
  ExpertStacks stacks_;
  base::Bytes unit_;
  std::unique_ptr<ExpertSplitTargetConfig> config_;
  std::unique_ptr<Hotness> hotness_;
  std::map<std::string, std::size_t> room_;
  std::string oversized_;  // the device that is asked for kOversized bytes a layer
  std::vector<std::string> warnings_;
  std::vector<std::string> lines_;
  Repack repack_ = Repack::kAuto;
  base::Bytes untouched_;
  std::size_t packings_ = 9;  // that the system has memory for
  std::optional<base::Bytes> available_ = base::Bytes::GiB(1);
  base::Bytes done_, total_;  // of the last report
  std::function<base::Result<bool>(LayerId)> keep_on_primary_;
};

TEST_F(ExpertLoaderTest, LoadsThePlanThatWasWanted) {
  auto loaded = Load("vulkan:0,vulkan:1,cpu", {6, 6, std::nullopt});
  ASSERT_TRUE(loaded) << loaded.error().message;
  EXPECT_EQ(loaded->components->plan().Summary(), "vulkan:0=6|vulkan:1=6|cpu=6");
  EXPECT_TRUE(warnings_.empty());
  ExpectRightNumbers(*loaded);
}

TEST_F(ExpertLoaderTest, UnitsWithoutRoomMoveToTheNextTargetWithAWarning) {
  room_["Vulkan0"] = 3;
  auto loaded = Load("vulkan:0,vulkan:1,cpu", {6, 9, std::nullopt});
  ASSERT_TRUE(loaded) << loaded.error().message;
  const ExpertSplitPlan& plan = loaded->components->plan();
  EXPECT_LE(plan.units(TargetId(0)), 3u);
  EXPECT_GT(plan.units(TargetId(0)), 0u);
  EXPECT_EQ(plan.units(TargetId(1)), 9u) << "the second target is filled first";
  EXPECT_EQ(plan.units(TargetId(0)) + plan.units(TargetId(1)) + plan.units(TargetId(2)),
            kLayers * kExperts);
  ASSERT_FALSE(warnings_.empty());
  EXPECT_THAT(warnings_.front(), HasSubstr("vulkan:0"));
  EXPECT_THAT(warnings_.front(), HasSubstr("moved"));
  ExpectRightNumbers(*loaded);
}

TEST_F(ExpertLoaderTest, ATargetWithoutAnyRoomOwnsNothing) {
  room_["Vulkan0"] = 0;
  room_["Vulkan1"] = 0;
  auto loaded = Load("vulkan:0,vulkan:1,cpu", {6, 6, std::nullopt});
  ASSERT_TRUE(loaded) << loaded.error().message;
  EXPECT_EQ(loaded->components->plan().Summary(), "vulkan:0=0|vulkan:1=0|cpu=18");
  ExpectRightNumbers(*loaded);
}

// The software driver has no buffer of more than a few GiB.
TEST_F(ExpertLoaderTest, UnitsMoveWhenTheDriverRefusesTheirBuffer) {
  const auto backend = gg::FindDevice(devices_, "vulkan:0")->description;
  if (backend.find("llvmpipe") == std::string::npos) GTEST_SKIP() << backend << " has the memory";
  oversized_ = "Vulkan0";
  auto loaded = Load("vulkan:0,vulkan:1,cpu", {6, 6, std::nullopt});
  ASSERT_TRUE(loaded) << loaded.error().message;
  EXPECT_EQ(loaded->components->plan().Summary(), "vulkan:0=0|vulkan:1=6|cpu=12");
  ASSERT_FALSE(warnings_.empty());
  EXPECT_THAT(warnings_.front(), HasSubstr("vulkan:0"));
  EXPECT_THAT(warnings_.front(), HasSubstr("moved 6 units"));
  ExpectRightNumbers(*loaded);
}

TEST_F(ExpertLoaderTest, RefusesWhenNoLaterTargetHasRoom) {
  room_["Vulkan1"] = 2;
  auto loaded = Load("vulkan:0,vulkan:1", {9, 9});
  ASSERT_FALSE(loaded);
  EXPECT_EQ(loaded.error().kind, base::ErrorKind::kCapacity);
  EXPECT_THAT(loaded.error().message, HasSubstr("vulkan:1"));
  EXPECT_THAT(loaded.error().message, HasSubstr("--targets"));
}

TEST_F(ExpertLoaderTest, PacksWhatTheCpuOwnsWhenItFits) {
  UseType(GGML_TYPE_Q8_0);
  auto loaded = Load("vulkan:0,cpu", {6, std::nullopt});
  ASSERT_TRUE(loaded) << loaded.error().message;
  EXPECT_TRUE(lines_.empty());
  EXPECT_EQ(done_, unit_ * 12);
  EXPECT_EQ(total_, unit_ * 12);
  ExpectRightNumbers(*loaded, 1e-3);
}

TEST_F(ExpertLoaderTest, UsesTheFileWithOneLineWhenPackedExpertsDoNotFit) {
  UseType(GGML_TYPE_Q8_0);
  available_ = base::Bytes::MiB(256);
  auto loaded = Load("cpu", {std::nullopt});
  ASSERT_TRUE(loaded) << loaded.error().message;
  EXPECT_THAT(lines_, ElementsAre(HasSubstr("256.0 MiB is available")));
  EXPECT_EQ(total_, base::Bytes()) << "nothing was packed";
  ExpectRightNumbers(*loaded, 1e-3);
}

TEST_F(ExpertLoaderTest, PackingLeavesRoomForDevicesOfTheHostsMemory) {
  ASSERT_TRUE(gg::FindDevice(devices_, "vulkan:0")->host_memory) << "llvmpipe's is the host's";
  UseType(GGML_TYPE_Q8_0);
  available_ = NeedOf(1);
  auto loaded_before = Load("vulkan:0,cpu", {12, std::nullopt});
  ASSERT_TRUE(loaded_before) << loaded_before.error().message;
  EXPECT_TRUE(lines_.empty());
  EXPECT_EQ(total_, unit_ * 6) << "packed";
  auto loaded_after = Load("cpu,vulkan:0", {6, std::nullopt});
  ASSERT_TRUE(loaded_after) << loaded_after.error().message;
  EXPECT_THAT(lines_, ElementsAre(HasSubstr("is available")));
}

TEST_F(ExpertLoaderTest, PackingLeavesRoomForWhatIsNotTouchedYet) {
  UseType(GGML_TYPE_Q8_0);
  untouched_ = base::Bytes::GiB(3);
  available_ = NeedOf(kLayers) + untouched_;
  auto loaded = Load("cpu", {std::nullopt});
  ASSERT_TRUE(loaded) << loaded.error().message;
  EXPECT_TRUE(lines_.empty());
  EXPECT_EQ(total_, unit_ * kLayers * kExperts);
  total_ = {};
  *available_ -= base::Bytes(1);
  auto mapped = Load("cpu", {std::nullopt});
  ASSERT_TRUE(mapped) << mapped.error().message;
  EXPECT_THAT(lines_, ElementsAre(HasSubstr("is available")));
  EXPECT_EQ(total_, base::Bytes()) << "nothing was packed";
}

TEST_F(ExpertLoaderTest, UsesTheFileWithOneWarningWhenTheSystemRefusesMemory) {
  UseType(GGML_TYPE_Q8_0);
  packings_ = 0;
  auto loaded = Load("cpu", {std::nullopt});
  ASSERT_TRUE(loaded) << loaded.error().message;
  EXPECT_THAT(warnings_, ElementsAre(HasSubstr("used as the file has them")));
  EXPECT_EQ(total_, base::Bytes()) << "nothing was packed";
  ExpectRightNumbers(*loaded, 1e-3);
}

// The bits of a row must not depend on which CPU owner has its experts.
TEST_F(ExpertLoaderTest, AllCpuOwnersUseTheFileWhenOneMust) {
  UseType(GGML_TYPE_Q8_0);
  repack_ = Repack::kOff;
  auto mapped = Load("cpu:0,cpu:1", {6, 12});
  ASSERT_TRUE(mapped) << mapped.error().message;
  repack_ = Repack::kAuto;
  packings_ = 1;
  auto loaded = Load("cpu:0,cpu:1", {6, 12});
  ASSERT_TRUE(loaded) << loaded.error().message;
  EXPECT_EQ(total_, unit_ * 6) << "the first owner packed";
  EXPECT_THAT(warnings_, ElementsAre(HasSubstr("used as the file has them")));
  const TestBatch batch(test_shape_, 7, kUsed);
  for (std::size_t l = 0; l < kLayers; ++l) {
    const ExpertBatch one = batch.batch(LayerId(l));
    EXPECT_EQ(RunBatch(*loaded->components->compute().routed(), one, 2),
              RunBatch(*mapped->components->compute().routed(), one, 2));
  }
}

TEST_F(ExpertLoaderTest, PacksNothingWhenOff) {
  UseType(GGML_TYPE_Q8_0);
  repack_ = Repack::kOff;
  auto off = Load("cpu", {std::nullopt});
  ASSERT_TRUE(off) << off.error().message;
  EXPECT_EQ(total_, base::Bytes());
  EXPECT_TRUE(lines_.empty());
}

TEST_F(ExpertLoaderTest, OffersWholeLayersToThePrimary) {
  std::vector<std::size_t> asked;
  keep_on_primary_ = [&](LayerId layer) {
    asked.push_back(layer.index());
    return base::Result<bool>(layer.index() != 1);
  };
  auto loaded = Load("vulkan:0,cpu", {kLayers * kExperts, std::nullopt});
  ASSERT_TRUE(loaded) << loaded.error().message;
  EXPECT_THAT(asked, ElementsAre(0, 1, 2));
  EXPECT_THAT(loaded->kept_on_primary, ElementsAre(LayerId(0), LayerId(2)));
}

}  // namespace
}  // namespace moe
