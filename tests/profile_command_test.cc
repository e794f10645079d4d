// `expert-split profile`, `run --record` and what plans make of profiles, as a user sees them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <format>
#include <iterator>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <vector>

#include "base/file.h"
#include "gg/gguf_file.h"
#include "program.h"
#include "support/test_models.h"

namespace test {
namespace {

using Json = nlohmann::json;
using ::testing::HasSubstr;

// 4 layers of 16 experts, top-4, some far more popular than others.
constexpr std::size_t kLayers = 4;
constexpr std::size_t kExperts = 16;
constexpr std::size_t kUsed = 4;
const std::string kSkew = "profile-skew";

// Sentences about one subject, the same for the same seed.
std::string DomainText(std::size_t num_bytes, std::uint32_t seed) {
  static constexpr const char* kWords[] = {
      "the",   "the",    "the",    "of",      "of",      "and",    "and",   "ship",
      "sea",   "wind",   "sailed", "harbour", "captain", "storm",  "under", "stars",
      "water", "turned", "north",  "rope",    "mast",    "waves",  "broke", "over",
      "deck",  "while",  "men",    "sang",    "until",   "morning"};
  std::string text;
  for (std::uint32_t x = seed; text.size() < num_bytes;) {
    x = x * 1664525U + 1013904223U;
    text += kWords[(x >> 8) % std::size(kWords)];
    text += (x >> 20) % 9 == 0 ? ".\n" : " ";
  }
  text.resize(num_bytes);
  return text;
}

class ProfileCommandTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string Path(const std::string& name) const { return folder_ / name; }
  std::string Write(const std::string& name, std::string_view content) const {
    EXPECT_TRUE(base::WriteFileAtomically(Path(name), content));
    return Path(name);
  }
  std::string WriteText(const std::string& name, std::size_t num_bytes, std::uint32_t seed) const {
    return Write(name, DomainText(num_bytes, seed));
  }
  std::size_t NumFiles() const {
    const std::filesystem::directory_iterator files(folder_);
    return static_cast<std::size_t>(std::distance(begin(files), end(files)));
  }

  static ProgramResult Profile(std::vector<std::string> words, const std::string& model = kSkew,
                               const std::string& vulkan = kNoVulkan) {
    words.insert(words.begin(), "profile");
    if (!model.empty()) words.insert(words.end(), {"--model", ModelPath(model)});
    return RunExpertSplit(words, {vulkan});
  }
  ProgramResult Record(const std::string& text, const std::string& out,
                       const std::string& model = kSkew, std::vector<std::string> more = {}) const {
    more.insert(more.end(), {"--text", text, "--out", out, "--threads", "1"});
    if (!std::ranges::contains(more, "--targets")) {
      more.insert(more.end(), {"--targets", "cpu"});
    }
    ProgramResult result = Profile(more, model, kTwoVulkan);
    EXPECT_EQ(result.status, 0) << result.err;
    return result;
  }
  static Json Read(const std::string& path) {
    auto text = base::ReadFile(path, base::Bytes::MiB(1));
    EXPECT_TRUE(text) << text.error().message;
    return Json::parse(text ? *text : "", nullptr, /*allow_exceptions=*/false);
  }
  static Json JsonOf(const ProgramResult& result) {
    EXPECT_EQ(result.status, 0) << result.err;
    return Json::parse(result.out, nullptr, /*allow_exceptions=*/false);
  }

  std::filesystem::path folder_ = std::filesystem::path(::testing::TempDir()) /
                                  (std::string("profile_command_") +
                                   ::testing::UnitTest::GetInstance()->current_test_info()->name());
};

void ExpectTokensTimesTopK(const Json& profile, std::uint64_t num_tokens) {
  EXPECT_EQ(profile["num_tokens"], num_tokens);
  ASSERT_EQ(profile["counts"].size(), kLayers);
  for (const Json& layer : profile["counts"]) {
    ASSERT_EQ(layer.size(), kExperts);
    std::uint64_t sum = 0;
    for (const Json& count : layer) sum += count.get<std::uint64_t>();
    EXPECT_EQ(sum, num_tokens * kUsed);
  }
}

// One token a byte.
TEST_F(ProfileCommandTest, EveryTokenCountsInEveryLayerHoweverTheTextIsCut) {
  const std::string text = WriteText("a.txt", 700, 1);
  Record(text, Path("whole.json"));
  Record(text, Path("steps.json"), kSkew, {"--batch", "7"});
  const Json whole = Read(Path("whole.json"));
  ExpectTokensTimesTopK(whole, 700);
  EXPECT_EQ(whole["text"], "a.txt");
  EXPECT_EQ(whole, Read(Path("steps.json")));
  // Chunks of another length begin elsewhere.
  Record(text, Path("chunks.json"), kSkew, {"--ctx", "64"});
  ExpectTokensTimesTopK(Read(Path("chunks.json")), 700);
  EXPECT_NE(whole["counts"], Read(Path("chunks.json"))["counts"]);
}

TEST_F(ProfileCommandTest, SeveralTextsAddUpAsTheirMergedProfilesDo) {
  const std::string a = WriteText("a.txt", 300, 2);
  const std::string b = WriteText("b.txt", 200, 3);
  Record(a, Path("a.json"));
  Record(b, Path("b.json"));
  const ProgramResult both =
      Profile({"--text", a, b, "--out", Path("both.json"), "--targets", "cpu", "--threads", "1"});
  EXPECT_EQ(both.status, 0) << both.err;
  const ProgramResult merged =
      Profile({"--merge", Path("a.json") + ":1.0", Path("b.json"), "--out", Path("ab.json")}, "");
  EXPECT_EQ(merged.status, 0) << merged.err;
  EXPECT_EQ(Read(Path("ab.json")), Read(Path("both.json")));
  EXPECT_EQ(Read(Path("ab.json"))["text"], "a.txt + b.txt");

  JsonOf(Profile({"--merge", Path("a.json") + ":2", Path("b.json") + ":0.5", "--out",
                  Path("weighted.json"), "--json"},
                 ""));
  const Json weighted = Read(Path("weighted.json"));
  EXPECT_EQ(weighted["num_tokens"], 700);
  EXPECT_EQ(weighted["text"], "2*a.txt + 0.5*b.txt");
  EXPECT_EQ(weighted["counts"][1][3].get<double>(),
            std::round(2 * Read(Path("a.json"))["counts"][1][3].get<double>() +
                       0.5 * Read(Path("b.json"))["counts"][1][3].get<double>()));
}

// What the model was made with: column 0 of a layer's router is larger the more popular an expert.
std::vector<float> PopularityOf(const gg::GgufFile& file, std::size_t layer) {
  const gg::GgufTensor* tensor = file.FindTensor(std::format("blk.{}.ffn_gate_inp.weight", layer));
  EXPECT_NE(tensor, nullptr);
  const std::span<const std::byte> bytes = file.Data(*tensor);
  const std::size_t width = bytes.size() / sizeof(float) / kExperts;
  std::vector<float> popularity(kExperts);
  for (std::size_t e = 0; e < kExperts; ++e) {
    std::memcpy(&popularity[e], bytes.data() + e * width * sizeof(float), sizeof(float));
  }
  return popularity;
}

// Position of each value when they are sorted, 0 for the largest.
template <class T>
std::vector<double> Ranks(const std::vector<T>& values) {
  std::vector<std::size_t> order(values.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::sort(order, [&](std::size_t a, std::size_t b) { return values[a] > values[b]; });
  std::vector<double> ranks(values.size());
  for (std::size_t i = 0; i < order.size(); ++i) ranks[order[i]] = static_cast<double>(i);
  return ranks;
}

TEST_F(ProfileCommandTest, RanksExpertsByTheirPopularity) {
  const std::string text = WriteText("a.txt", 2000, 4);
  const Json shown = JsonOf(Record(text, Path("p.json"), kSkew, {"--json"}));
  auto file = gg::GgufFile::Open(ModelPath(kSkew));
  ASSERT_TRUE(file);
  for (std::size_t layer = 0; layer < kLayers; ++layer) {
    const auto expected = Ranks(PopularityOf(*file, layer));
    const auto ranks =
        Ranks(Read(Path("p.json"))["counts"][layer].get<std::vector<std::uint64_t>>());
    double squares = 0;
    for (std::size_t e = 0; e < kExperts; ++e) squares += std::pow(ranks[e] - expected[e], 2);
    constexpr double kN = kExperts;
    EXPECT_GT(1 - 6 * squares / (kN * (kN * kN - 1)), 0.8) << "rank correlation, layer " << layer;
    EXPECT_TRUE(shown["layers"][layer]["beyond_uniform"]);
  }
  EXPECT_TRUE(shown["beyond_uniform"]);
  const Json& quarter = shown["mean"]["hottest"][1];
  EXPECT_EQ(quarter["fraction"], 0.25);
  EXPECT_EQ(quarter["experts"], 4);
  EXPECT_GT(quarter["share"], quarter["uniform_share"].get<double>() + 0.15);
  EXPECT_LT(shown["mean"]["entropy"], shown["mean"]["uniform_entropy"]);
}

TEST_F(ProfileCommandTest, CountsAreThoseOfTheCpuWhereverExpertsAre) {
  const std::string text = WriteText("a.txt", 300, 5);
  Record(text, Path("cpu.json"));
  const Json cpu = Read(Path("cpu.json"));
  // All in the primary's own graph; spread, with layers of every kind.
  for (const std::string targets : {"vulkan:0", "vulkan:0=40%,vulkan:1=20%,cpu"}) {
    SCOPED_TRACE(targets);
    Record(text, Path("devices.json"), kSkew, {"--targets", targets, "--policy", "layers"});
    const Json devices = Read(Path("devices.json"));
    ExpectTokensTimesTopK(devices, 300);
    // Devices round otherwise, so that near ties may fall otherwise.
    double differing = 0;
    for (std::size_t layer = 0; layer < kLayers; ++layer) {
      for (std::size_t e = 0; e < kExperts; ++e) {
        differing += std::abs(cpu["counts"][layer][e].get<double>() -
                              devices["counts"][layer][e].get<double>());
      }
    }
    EXPECT_LT(differing / (300 * kUsed * kLayers), 0.01);
  }
}

TEST_F(ProfileCommandTest, AHeldOutTextGoesWhereThePlanExpectedIt) {
  const std::string known = WriteText("known.txt", 5000, 6);
  const std::string held_out = WriteText("held_out.txt", 1500, 7);
  Record(known, Path("p.json"));
  const std::vector<std::string> placement = {
      "--model", ModelPath(kSkew), "--targets", "cpu=25%,vulkan:0", "--profile", Path("p.json"),
      "--ctx",   "2048",           "--json"};
  std::vector<std::string> plan = {"plan"};
  std::vector<std::string> run = {"run", "--prompt-file", held_out, "-n", "1", "--threads", "1"};
  plan.insert(plan.end(), placement.begin(), placement.end());
  run.insert(run.end(), placement.begin(), placement.end());
  const Json planned = JsonOf(RunExpertSplit(plan, {kTwoVulkan}));
  const Json ran = JsonOf(RunExpertSplit(run, {kTwoVulkan}));
  EXPECT_EQ(planned["fingerprint"], ran["fingerprint"]);
  for (std::size_t t = 0; t < 2; ++t) {
    EXPECT_NEAR(ran["targets"][t]["share"].get<double>(),
                planned["targets"][t]["expected_share"].get<double>(), 0.03);
  }
  EXPECT_GT(planned["targets"][0]["expected_share"], 0.4) << "hot experts come first";
}

TEST_F(ProfileCommandTest, RunRecordsPromptAndText) {
  const std::vector<std::string> run = {
      "run",    "--model", ModelPath(kSkew), "--targets", "cpu", "-p",    "Hello there", "-n", "20",
      "--temp", "0",       "--ignore-eos",   "--threads", "1",   "--json"};
  std::vector<std::string> recording = run;
  recording.insert(recording.end(), {"--record", Path("r.json")});
  const Json silent = JsonOf(RunExpertSplit(run, {kNoVulkan}));
  const Json recorded = JsonOf(RunExpertSplit(recording, {kNoVulkan}));
  EXPECT_EQ(silent["tokens"], recorded["tokens"]);
  // The last generated token is not fed back.
  ExpectTokensTimesTopK(Read(Path("r.json")), recorded["prompt_tokens"].get<std::uint64_t>() + 19);
  JsonOf(Profile({"--show", Path("r.json"), "--json"}));
}

TEST_F(ProfileCommandTest, ShowsNoiseAsNoise) {
  Record(WriteText("a.txt", 100, 8), Path("p.json"));
  Json profile = Read(Path("p.json"));
  for (Json& layer : profile["counts"])
    layer = {24, 26, 25, 25, 27, 23, 20, 30, 25, 25, 21, 29, 25, 25, 22, 28};
  Write("noise.json", profile.dump());
  const ProgramResult table = Profile({"--show", Path("noise.json")}, "");
  EXPECT_EQ(table.status, 0) << table.err;
  EXPECT_THAT(table.out, HasSubstr("profile of \"a.txt\": 100 tokens, qwen35moe"));
  EXPECT_THAT(table.out, HasSubstr("LAYER  HOTTEST 10 %  UNIFORM  HOTTEST 25 %"));
  EXPECT_THAT(table.out, HasSubstr("as uniform"));
  EXPECT_THAT(table.out, HasSubstr("This is noise"));
  const Json shown = JsonOf(Profile({"--show", Path("noise.json"), "--json"}, ""));
  EXPECT_FALSE(shown["beyond_uniform"]);
  EXPECT_EQ(shown["layers"].size(), kLayers);
  EXPECT_EQ(shown["tokens"], 100);
  // A plan from it says so too.
  const ProgramResult plan = RunExpertSplit({"plan", "--model", ModelPath(kSkew), "--targets",
                                             "cuda:0=1MiB,cpu", "--profile", Path("noise.json")},
                                            {kNoVulkan});
  EXPECT_EQ(plan.status, 0);
  EXPECT_THAT(plan.err, HasSubstr("nothing that a uniform router does not show"));
}

TEST_F(ProfileCommandTest, AnotherQuantisationIsANoteAndAnotherModelIsRefused) {
  Record(WriteText("a.txt", 200, 9), Path("f32.json"));
  Record(Path("a.txt"), Path("q8_0.json"), "profile-skew-q8_0");
  Record(Path("a.txt"), Path("other.json"), "tiny-f32");

  const ProgramResult quantised = Profile({"--show", Path("f32.json")}, "profile-skew-q8_0");
  EXPECT_EQ(quantised.status, 0);
  EXPECT_THAT(quantised.err, HasSubstr("another quantisation of the model"));
  const ProgramResult merged =
      Profile({"--merge", Path("f32.json"), Path("q8_0.json"), "--out", Path("m.json")}, "");
  EXPECT_EQ(merged.status, 0) << merged.err;
  EXPECT_THAT(merged.err, HasSubstr("another quantisation of the model"));

  const std::size_t files = NumFiles();
  const ProgramResult shown = Profile({"--show", Path("other.json")});
  ExpectOneErrorLine(shown, 3, "4 layers x 8 experts");
  ExpectOneErrorLine(shown, 3, "4 layers x 16 experts");
  const ProgramResult mixed =
      Profile({"--merge", Path("f32.json"), Path("other.json"), "--out", Path("x.json")}, "");
  ExpectOneErrorLine(mixed, 3, "4 layers x 8 experts");
  ExpectOneErrorLine(mixed, 3, "4 layers x 16 experts");
  EXPECT_EQ(NumFiles(), files);
}

TEST_F(ProfileCommandTest, WrongCommandLinesWriteNothing) {
  const std::string text = Write("a.txt", "Hello");
  const std::string out = Path("out.json");
  const auto refused = [&](std::vector<std::string> words, std::string_view part,
                           const std::string& model = kSkew) {
    SCOPED_TRACE(part);
    ExpectOneErrorLine(Profile(std::move(words), model), 2, part);
  };
  Record(text, Path("p.json"));
  const std::size_t files = NumFiles() + 2;
  refused({"--text", Write("empty", ""), "--out", out}, "is empty");
  refused({"--text", text, Write("latin1", "caf\xe9!"), "--out", out}, "byte 3 is \"\\xe9\"");
  refused({"--text", Path("missing"), "--out", out}, "missing");
  refused({"--text", folder_, "--out", out}, "not a regular file");
  refused({"--text", text}, "--out");
  refused({"--text", text, "--out", out}, "--model", "");
  refused({"--text", text, "--out", Path("no/such/folder")}, "no/such/folder");
  refused({"--text", text, "--show", Path("p.json"), "--out", out}, "");
  refused({}, "");
  refused({"--show", Path("p.json"), "--out", out}, "--out", "");
  for (const std::string weight : {"0", "-1", "nan", "inf", "1e400", "x", "1x", ""}) {
    refused({"--merge", Path("p.json") + ":" + weight, "--out", out}, "not a number above 0", "");
  }
  refused({"--merge", Path("p.json") + ":1e300", "--out", out}, "use smaller weights", "");
  refused({"--merge", Path("p.json") + ":1e-9", "--out", out}, "use larger weights", "");
  ExpectOneErrorLine(
      RunExpertSplit({"run", "--model", ModelPath(kSkew), "-p", "x", "--record", "/nonexistent/r"},
                     {kNoVulkan}),
      2, "/nonexistent/r");
  EXPECT_EQ(NumFiles(), files) << "only the texts";
}

TEST_F(ProfileCommandTest, ProfilesThatCannotBeUsedAreStatus3AndWriteNothing) {
  Record(Write("a.txt", "Hello"), Path("p.json"));
  const Json good = Read(Path("p.json"));
  const std::string bad = Write("bad.json", "");
  const std::size_t files = NumFiles();
  const auto refused = [&](const std::string& text, std::string_view part) {
    SCOPED_TRACE(part);
    Write("bad.json", text);
    ExpectOneErrorLine(Profile({"--show", bad}, ""), 3, part);
    ExpectOneErrorLine(Profile({"--merge", Path("p.json"), bad, "--out", Path("out.json")}, ""), 3,
                       part);
    ExpectOneErrorLine(RunExpertSplit({"plan", "--model", ModelPath(kSkew), "--targets", "cpu",
                                       "--profile", bad, "--out", Path("out.json")},
                                      {kNoVulkan}),
                       3, part);
    EXPECT_EQ(NumFiles(), files);
  };
  const auto changed = [&](const char* pointer, const Json& value) {
    Json document = good;
    document[Json::json_pointer(pointer)] = value;
    return document.dump();
  };
  refused("", "not a JSON document");
  refused(good.dump().substr(0, good.dump().size() / 2), "not a JSON document");
  refused(changed("/num_tokens", 0), "num_tokens");
  refused(changed("/num_tokens", -1), "num_tokens");
  refused(changed("/counts/1/2", -1), "counts[1][2]");
  refused(changed("/counts/1/2", 1e300), "counts[1][2]");
  refused(changed("/counts/1/2", 6), "was selected 6 times by 5 tokens");
  std::filesystem::remove(bad);
  ExpectOneErrorLine(Profile({"--show", bad}, ""), 3, "bad.json");
}

TEST_F(ProfileCommandTest, CtrlCWritesNothing) {
  const std::string text = Write("long.txt", std::string(20000, 'a'));
  const ProgramResult result =
      InterruptExpertSplit({"profile", "--model", ModelPath(kSkew), "--targets", "cpu", "--threads",
                            "1", "--batch", "1", "--text", text, "--out", Path("p.json")},
                           {kNoVulkan}, Stream::kErr, "[expert-split] plan");
  EXPECT_EQ(result.status, 130) << result.err;
  EXPECT_EQ(result.out, "");
  EXPECT_THAT(result.err, HasSubstr("expert-split: error: stopped\n"));
  EXPECT_EQ(NumFiles(), 1u);
}

}  // namespace
}  // namespace test
