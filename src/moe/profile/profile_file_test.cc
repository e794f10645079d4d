#include "moe/profile/profile_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "moe/plan/test_shape.h"

namespace moe {
namespace {

using base::ErrorKind;
using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class ProfileFileTest : public ::testing::Test {
 protected:
  void ExpectRefused(std::string_view text, const std::string& part) const {
    const auto profile = ParseProfileFile(text, "r.json");
    ASSERT_FALSE(profile) << "accepted, expected: " << part;
    EXPECT_EQ(profile.error().kind, ErrorKind::kCorruptModel);
    EXPECT_THAT(profile.error().message, AllOf(HasSubstr("profile \"r.json\""), HasSubstr(part),
                                               HasSubstr("record it again"), Not(HasSubstr("\n"))));
  }
  void ExpectRefusedWith(const char* pointer, const json& value, const std::string& part) const {
    json changed = document_;
    changed[json::json_pointer(pointer)] = value;
    ExpectRefused(changed.dump(), part);
  }

  const ModelShape shape_ = TestShape({10, 20}, 4);
  const RoutingProfile profile_ = *RoutingProfile::FromCounts(shape_.identity, "wiki.txt", 100,
                                                              {{90, 60, 30, 20}, {50, 50, 50, 50}});
  const json document_ = json::parse(PrintProfileFile(profile_));
};

TEST_F(ProfileFileTest, ReadsBackWhatItWrote) {
  const std::string path = std::filesystem::path(::testing::TempDir()) / "profile_file_test.json";
  ASSERT_TRUE(WriteProfileFile(profile_, path));
  const auto read = ReadProfileFile(path);
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(read->model(), profile_.model());
  EXPECT_EQ(read->text(), "wiki.txt");
  EXPECT_EQ(read->num_tokens(), 100u);
  EXPECT_EQ(read->counts(), profile_.counts());
  std::filesystem::remove(path);
}

TEST_F(ProfileFileTest, TheDocumentedExampleIsWhatIsWritten) {
  ModelIdentity model = shape_.identity;
  model.architecture = "examplemoe";
  model.name = "Demo";
  const auto profile =
      RoutingProfile::FromCounts(model, "wiki.txt", 100, {{90, 60, 30, 20}, {50, 50, 50, 50}});
  ASSERT_TRUE(profile);
  std::ifstream page(EXPERT_SPLIT_SOURCE_DIR "/docs/profile_file.md");
  std::string line, example;
  while (std::getline(page, line) && line != "## Example") {
  }
  while (std::getline(page, line)) {
    if (line.starts_with("    ")) example += line.substr(4) + "\n";
  }
  EXPECT_EQ(example, PrintProfileFile(*profile));
}

TEST_F(ProfileFileTest, KeepsTheLargestCounts) {
  const std::uint64_t most = RoutingProfile::kMaxCount;
  const auto profile = RoutingProfile::FromCounts(shape_.identity, "x", most,
                                                  {{most, most - 1, 0, 1}, {0, 0, 0, 0}});
  ASSERT_TRUE(profile);
  const auto read = ParseProfileFile(PrintProfileFile(*profile), "r.json");
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(read->counts(), profile->counts());
}

TEST_F(ProfileFileTest, EveryFieldIsRequiredAndTyped) {
  for (const char* pointer :
       {"/format", "/version", "/model", "/model/architecture", "/model/name",
        "/model/quantisation", "/model/num_layers", "/model/num_experts", "/model/directory_hash",
        "/model/shape_hash", "/text", "/num_tokens", "/counts"}) {
    SCOPED_TRACE(pointer);
    const json::json_pointer at(pointer);
    json without = document_;
    without[at.parent_pointer()].erase(at.back());
    ExpectRefused(without.dump(), at.back() + ": missing");
    ExpectRefusedWith(pointer, -1.5, at.back() + ": ");
    ExpectRefusedWith(pointer, json::array({json::object()}), at.back());
    ExpectRefusedWith(pointer, true, at.back() + ": ");
  }
}

TEST_F(ProfileFileTest, RefusesCountsThatContradictTheModelOrTheTokens) {
  ExpectRefusedWith("/model/num_layers", 3, "field counts: has 2 elements, expected 3");
  ExpectRefusedWith("/model/num_experts", 5, "field counts[0]: not an array of 5 counts");
  ExpectRefusedWith("/model/num_layers", 4294967295u, "are more than 4194304 units");
  ExpectRefusedWith("/counts/1", "x", "field counts[1]: not an array");
  ExpectRefusedWith("/counts/1/2", -1, "field counts[1][2]: not a whole number");
  ExpectRefusedWith("/counts/1/2", 1.0, "field counts[1][2]: not a whole number");
  ExpectRefusedWith("/counts/1/2", 101, "layer 1, expert 2 was selected 101 times by 100 tokens");
  ExpectRefusedWith("/num_tokens", 0, "field num_tokens: ");
  ExpectRefusedWith("/num_tokens", -5, "field num_tokens: ");
  ExpectRefusedWith("/num_tokens", (std::uint64_t{1} << 53) + 1, "field num_tokens: ");
}

TEST_F(ProfileFileTest, RefusesWhatIsNotAProfile) {
  ExpectRefused("", "not a JSON document");
  ExpectRefused("null", "not a JSON object");
  ExpectRefused(std::string(1'000'000, '['), "nested 1000000 deep");
  ExpectRefusedWith("/format", "expert-split-plan", "is not \"expert-split-profile\"");
  ExpectRefusedWith("/version", 99, "field version: 99 is not supported");
  const auto missing = ReadProfileFile("/nonexistent/r.json");
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().kind, ErrorKind::kCorruptModel);
}

}  // namespace
}  // namespace moe
