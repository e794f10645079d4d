#include "moe/plan/plan_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "base/file.h"
#include "moe/plan/test_shape.h"

namespace moe {
namespace {

using base::Bytes;
using base::ErrorKind;
using nlohmann::json;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

class PlanFileTest : public ::testing::Test {
 protected:
  PlanFileTest() : shape_(TestShape({10, 20}, 8)), hotness_(Hotness::Uniform(shape_)) {
    auto plan = ExpertSplitPlan::Make({.shape = &shape_,
                                       .hotness = &hotness_,
                                       .targets = {{"cuda:0", Bytes(80)}, {"cpu", std::nullopt}}});
    if (plan) {
      plan_ = *plan;
      document_ = json::parse(PrintPlanFile(*plan_));
    }
  }

  base::Result<ExpertSplitPlan> Parse(std::string_view text) const {
    return ParsePlanFile(text, "p.json", shape_, hotness_);
  }
  void ExpectRefused(std::string_view text, const std::string& part) const {
    const auto plan = Parse(text);
    ASSERT_FALSE(plan) << "accepted, expected: " << part;
    EXPECT_EQ(plan.error().kind, ErrorKind::kCorruptModel);
    EXPECT_THAT(plan.error().message,
                AllOf(HasSubstr(R"(plan "p.json")"), HasSubstr(part),
                      HasSubstr("; make it again with `expert-split plan --out`"),
                      Not(ContainsRegex("again.*again")), Not(HasSubstr("\n"))));
  }
  // The document with one value replaced by `value`.
  void ExpectRefusedWith(const char* pointer, const json& value, const std::string& part) const {
    json changed = document_;
    changed[json::json_pointer(pointer)] = value;
    ExpectRefused(changed.dump(), part);
  }

  const ModelShape shape_;
  const Hotness hotness_;
  std::optional<ExpertSplitPlan> plan_;
  json document_;
};

TEST_F(PlanFileTest, ReadsBackWhatItWrote) {
  const std::string path = std::filesystem::path(::testing::TempDir()) / "plan_file_test.json";
  ASSERT_TRUE(WritePlanFile(*plan_, path));
  const auto read = ReadPlanFile(path, shape_, hotness_);
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_TRUE(std::ranges::equal(read->owners(), plan_->owners()));
  EXPECT_TRUE(std::ranges::equal(read->targets(), plan_->targets()));
  EXPECT_EQ(read->fingerprint(), plan_->fingerprint());
  EXPECT_EQ(read->bytes(TargetId(0)), plan_->bytes(TargetId(0)));
  EXPECT_DOUBLE_EQ(read->expected_share(TargetId(0)), plan_->expected_share(TargetId(0)));
  EXPECT_EQ(PrintPlanFile(*read), PrintPlanFile(*plan_));
  std::filesystem::remove(path);
}

TEST_F(PlanFileTest, AnotherProcessMakesTheSameFile) {
  int channel[2];
  ASSERT_EQ(pipe(channel), 0);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const auto plan = ExpertSplitPlan::Make(
        {.shape = &shape_, .hotness = &hotness_, .targets = {{"cuda:0", Bytes(80)}, {"cpu", {}}}});
    const std::string text = plan ? PrintPlanFile(*plan) : "";
    _exit(write(channel[1], text.data(), text.size()) == static_cast<ssize_t>(text.size()) ? 0 : 1);
  }
  close(channel[1]);
  std::string text(4096, '\0');
  const ssize_t got = read(channel[0], text.data(), text.size());
  close(channel[0]);
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  ASSERT_GT(got, 0);
  text.resize(static_cast<std::size_t>(got));
  EXPECT_EQ(text, PrintPlanFile(*plan_));
}

TEST_F(PlanFileTest, TheDocumentedExampleIsWhatIsWritten) {
  ModelShape shape = TestShape({1 << 20, 1 << 20}, 8);
  shape.identity.architecture = "examplemoe";
  shape.identity.name = "Demo";
  shape.identity.quantisation = "Q8_0";
  const Hotness uniform = Hotness::Uniform(shape);
  const auto plan = ExpertSplitPlan::Make(
      {.shape = &shape, .hotness = &uniform, .targets = {{"cuda:0", Bytes::MiB(5)}, {"cpu", {}}}});
  ASSERT_TRUE(plan);
  std::ifstream page(EXPERT_SPLIT_SOURCE_DIR "/docs/plan_file.md");
  std::string line, example;
  while (std::getline(page, line) && line != "## Example") {
  }
  while (std::getline(page, line)) {
    if (line.starts_with("    ")) example += line.substr(4) + "\n";
  }
  EXPECT_EQ(example, PrintPlanFile(*plan));
}

TEST_F(PlanFileTest, KeepsTheLargestCapacityAndNamesThatAreNotUtf8) {
  ModelShape shape = shape_;
  shape.identity.name = "bad \xff\xfe name\n\"";
  const auto plan = ExpertSplitPlan::Make(
      {.shape = &shape, .hotness = &hotness_, .targets = {{"cpu", Bytes::Max()}}});
  ASSERT_TRUE(plan);
  const auto read = ParsePlanFile(PrintPlanFile(*plan), "p.json", shape, hotness_);
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(read->targets()[0].capacity, Bytes::Max());
  EXPECT_EQ(read->model().name, shape.identity.name);
}

TEST_F(PlanFileTest, RefusesWhatIsNotAPlan) {
  ExpectRefused("", "not a JSON document");
  ExpectRefused("{\"format\": ", "not a JSON document");
  ExpectRefused("[1]", "not a JSON object");
  ExpectRefused("{}", "field format: missing");
  ExpectRefused("\xff", "not a JSON document");
  ExpectRefused(document_.dump() + "}", "not a JSON document");
  ExpectRefusedWith("/format", "expert-split-profile", "field format: ");
  ExpectRefusedWith("/version", 2, "field version: 2 is not supported, only 1 is");
  ExpectRefusedWith("/version", "1", "field version: \"1\" is not a whole number");
}

TEST_F(PlanFileTest, RefusesDeepNestingBeforeParsingIt) {
  ExpectRefused(std::string(5'000'000, '['), "nested 5000000 deep");
  ExpectRefused("{\"format\":" + std::string(9, '['), "nested 10 deep");
  json deep = document_;
  deep["model"]["name"] = "[[[[[[[[[[[[\\\"[[";
  ExpectRefused(deep.dump(), "field model: the plan is for");
}

TEST_F(PlanFileTest, RefusesFilesThatAreMissingOrHuge) {
  const auto missing = ReadPlanFile("/nonexistent/p.json", shape_, hotness_);
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().kind, ErrorKind::kCorruptModel);
  EXPECT_THAT(missing.error().message, HasSubstr("'/nonexistent/p.json'"));
  const std::string path = std::filesystem::path(::testing::TempDir()) / "huge_plan_test.json";
  std::ofstream(path).put('{');
  std::filesystem::resize_file(path, (std::uint64_t{64} << 20) + 1);
  const auto huge = ReadPlanFile(path, shape_, hotness_);
  ASSERT_FALSE(huge);
  EXPECT_EQ(huge.error().kind, ErrorKind::kCorruptModel);
  EXPECT_THAT(huge.error().message, HasSubstr("more than the 64.0 MiB"));
  std::filesystem::remove(path);
}

TEST_F(PlanFileTest, EveryFieldIsRequiredAndTyped) {
  for (const char* pointer :
       {"/format", "/version", "/model", "/model/architecture", "/model/name",
        "/model/quantisation", "/model/num_layers", "/model/num_experts", "/model/directory_hash",
        "/model/shape_hash", "/targets", "/targets/0/name", "/targets/1/capacity", "/owners",
        "/fingerprint"}) {
    SCOPED_TRACE(pointer);
    const json::json_pointer at(pointer);
    json without = document_;
    without[at.parent_pointer()].erase(at.back());
    ExpectRefused(without.dump(), at.back() + ": missing");
    const json number = -1.5;
    ExpectRefusedWith(pointer, number, at.back() + ": ");
    ExpectRefusedWith(pointer, json::array({json::object()}), at.back());
    ExpectRefusedWith(pointer, true, at.back() + ": ");
  }
}

TEST_F(PlanFileTest, RefusesTargetsOutOfRange) {
  ExpectRefusedWith("/targets", json::array(), "field targets: has 0 elements");
  ExpectRefusedWith("/targets", json::array_t(256, document_["targets"][1]),
                    "field targets: has 256 elements, expected 1 to 255");
  ExpectRefusedWith("/targets/1", 7, "field targets[1]: not an object");
  ExpectRefusedWith("/targets/0/name", "", "field targets[0].name: empty");
  ExpectRefusedWith("/targets/1/name", "cuda:0",
                    "field targets[1].name: \"cuda:0\" is listed twice");
  ExpectRefusedWith("/targets/0/capacity", -1, "field targets[0].capacity: neither null");
  ExpectRefusedWith("/targets/0/capacity", "80", "field targets[0].capacity: neither null");
  ExpectRefusedWith("/targets/0/capacity", 69, R"(target "cuda:0" would own)");
}

TEST_F(PlanFileTest, RefusesOwnersThatDoNotCoverEachLayerOnce) {
  ExpectRefusedWith("/owners", json::array({"0*8"}), "field owners: has 1 elements, expected 2");
  ExpectRefusedWith("/owners/1", 3, "field owners[1]: not text");
  for (const char* text : {"", "0*7", "1 1"}) {
    ExpectRefusedWith("/owners/0", text, "experts, expected 8");
  }
  for (const char* text : {"0*9", "1*8 0", "0*18446744073709551615", "0*4 1*5"}) {
    ExpectRefusedWith("/owners/0", text, "has owners for more than 8 experts");
  }
  ExpectRefusedWith("/owners/0", "0*4 2*4", "owner 2 is not one of the 2 targets");
  ExpectRefusedWith("/owners/0", "0*4 256*4", "owner 256 is not one of");
  for (const char* text :
       {" 1*8", "1*8 ", "-1*8", "01*8", "x", "1*4  1*4", "+1*8", "99999999999999999999*8"}) {
    ExpectRefusedWith("/owners/0", text, "field owners[0]: expected the number of a target");
  }
  for (const char* text : {"1*", "1*1 1*7", "1*0", "1*08", "1*99999999999999999999"}) {
    ExpectRefusedWith("/owners/0", text, "field owners[0]: expected a run's length");
  }
  ExpectRefusedWith("/owners/0", "1*4,1*4", "field owners[0]: runs must be parted");
}

TEST_F(PlanFileTest, RefusesAFingerprintThatIsNotThePlans) {
  ExpectRefusedWith("/fingerprint", "0000000000000000", "is stated, but the plan's is");
  ExpectRefusedWith("/fingerprint", "0", "not 16 lower-case hexadecimal digits");
  ExpectRefusedWith("/fingerprint", "0123456789ABCDEF", "not 16 lower-case hexadecimal digits");
  ExpectRefusedWith("/owners/1", "1*8", "is stated, but the plan's is");
  ExpectRefusedWith("/targets/0/name", "cuda:1", "is stated, but the plan's is");
}

TEST_F(PlanFileTest, RefusesAnotherModelAndNamesBoth) {
  ModelShape other = shape_;
  other.identity.name = "Other";
  other.identity.directory_hash = 1;
  const auto plan = ParsePlanFile(PrintPlanFile(*plan_), "p.json", other, hotness_);
  ASSERT_FALSE(plan);
  EXPECT_EQ(plan.error().kind, ErrorKind::kCorruptModel);
  EXPECT_THAT(
      plan.error().message,
      AllOf(HasSubstr(
                R"(for testmoe "Test" Q4_K_M, 2 layers x 8 experts, directory 0123456789abcdef)"),
            HasSubstr(
                R"(is testmoe "Other" Q4_K_M, 2 layers x 8 experts, directory 0000000000000001)")));
}

}  // namespace
}  // namespace moe
