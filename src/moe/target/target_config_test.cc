#include "moe/target/target_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <charconv>
#include <cstddef>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

namespace moe {
namespace {

using ::testing::HasSubstr;

struct Case {
  std::size_t line = 0;
  std::string input;
  bool accepted = false;
  std::string expected;  // canonical text, or a part of the message
};

// The quoted text at the start of `rest`, unescaped; `rest` then starts behind it.
std::string TakeQuoted(std::string_view& rest) {
  std::string text;
  rest.remove_prefix(1);
  while (!rest.empty() && rest.front() != '"') {
    if (rest.starts_with("\\x")) {
      unsigned value = 0;
      std::from_chars(rest.data() + 2, rest.data() + 4, value, 16);
      text += static_cast<char>(value);
      rest.remove_prefix(4);
      continue;
    }
    if (rest.front() == '\\') rest.remove_prefix(1);
    text += rest.front();
    rest.remove_prefix(1);
  }
  rest.remove_prefix(1);
  return text;
}

std::vector<Case> ReadCases() {
  std::ifstream file(EXPERT_SPLIT_SOURCE_DIR "/src/moe/target/testdata/target_lists.txt");
  std::vector<Case> cases;
  std::string line;
  for (std::size_t number = 1; std::getline(file, line); ++number) {
    if (line.empty() || line.front() == '#') continue;
    Case read{.line = number, .input = {}, .accepted = false, .expected = {}};
    std::string_view rest = line;
    read.input = TakeQuoted(rest);
    read.accepted = rest.starts_with(" -> ");
    EXPECT_TRUE(read.accepted || rest.starts_with(" !> ")) << "line " << number;
    rest.remove_prefix(4);
    read.expected = read.accepted ? TakeQuoted(rest) : std::string(rest);
    cases.push_back(read);
  }
  return cases;
}

ExpertSplitTargetConfig ParseOk(std::string_view list) {
  base::Result<ExpertSplitTargetConfig> config = ExpertSplitTargetConfig::Parse(list);
  EXPECT_TRUE(config.has_value()) << list << ": " << config.error().message;
  return *config;
}

std::string ErrorOf(std::string_view list) {
  const base::Result<ExpertSplitTargetConfig> config = ExpertSplitTargetConfig::Parse(list);
  EXPECT_FALSE(config.has_value()) << list;
  if (config.has_value()) return {};
  EXPECT_EQ(config.error().kind, base::ErrorKind::kInvalidInput);
  return config.error().message;
}

TEST(TargetConfig, ParsesAndPrintsWhatTheDataFileSays) {
  const std::vector<Case> cases = ReadCases();
  ASSERT_GE(cases.size(), 80u);
  for (const Case& c : cases) {
    SCOPED_TRACE("target_lists.txt, line " + std::to_string(c.line));
    const base::Result<ExpertSplitTargetConfig> config = ExpertSplitTargetConfig::Parse(c.input);
    if (!c.accepted) {
      ASSERT_FALSE(config.has_value()) << "accepted: " << c.input;
      EXPECT_EQ(config.error().kind, base::ErrorKind::kInvalidInput);
      EXPECT_THAT(config.error().message, HasSubstr(c.expected));
      continue;
    }
    ASSERT_TRUE(config.has_value()) << config.error().message;
    EXPECT_EQ(config->Print(), c.expected);
    const base::Result<ExpertSplitTargetConfig> again =
        ExpertSplitTargetConfig::Parse(config->Print());
    ASSERT_TRUE(again.has_value()) << again.error().message;
    EXPECT_EQ(*again, *config);
  }
}

TEST(TargetConfig, MessagesAreOneShortPrintableLine) {
  for (const Case& c : ReadCases()) {
    if (c.accepted) continue;
    const std::string message = ErrorOf(c.input);
    EXPECT_LT(message.size(), 600u) << message;
    for (const char ch : message) {
      EXPECT_TRUE(ch >= 0x20 && ch < 0x7f) << "line " << c.line << ": " << message;
    }
  }
}

TEST(TargetConfig, KeepsTheOrderAndTheFieldsOfEveryTarget) {
  const ExpertSplitTargetConfig config = ParseOk(
      "worker(rpc:h:9/3)=1GiB,unix:/s,rpc:10.0.0.7:50052/2,rocm:5=12.5%,worker(cuda:1),cpu:3");
  ASSERT_EQ(config.size(), 6u);
  const auto targets = config.targets();
  EXPECT_EQ(targets[0].place, TargetPlace::kWorker);
  EXPECT_EQ(targets[0].inner_place, TargetPlace::kRpc);
  EXPECT_EQ(targets[0].host, "h");
  EXPECT_EQ(targets[0].port, 9);
  EXPECT_EQ(targets[0].index, 3u);
  EXPECT_EQ(targets[0].capacity.policy, CapacityPolicy::kBytes);
  EXPECT_EQ(targets[0].capacity.bytes, base::Bytes::GiB(1));
  EXPECT_EQ(targets[0].name, "worker(rpc:h:9/3)");
  EXPECT_EQ(targets[1].place, TargetPlace::kUnix);
  EXPECT_EQ(targets[1].path, "/s");
  EXPECT_EQ(targets[2].place, TargetPlace::kRpc);
  EXPECT_EQ(targets[2].index, 2u);
  EXPECT_EQ(targets[2].name, "rpc:10.0.0.7:50052/2");
  EXPECT_EQ(targets[3].place, TargetPlace::kDevice);
  EXPECT_EQ(targets[3].kind, BackendKind::kHip);
  EXPECT_EQ(targets[3].name, "hip:5");
  EXPECT_EQ(targets[3].capacity.percent_e6, 12'500'000u);
  EXPECT_EQ(targets[4].inner_place, TargetPlace::kDevice);
  EXPECT_EQ(targets[4].kind, BackendKind::kCuda);
  EXPECT_EQ(targets[4].capacity.policy, CapacityPolicy::kAuto);
  EXPECT_EQ(targets[5].place, TargetPlace::kNuma);
  EXPECT_EQ(targets[5].inner_place, TargetPlace::kNuma);
  EXPECT_EQ(targets[5].index, 3u);
  EXPECT_EQ(config[TargetId(5)].name, "cpu:3");
}

TEST(TargetConfig, PrimaryIsTheFirstThatIsNeitherWorkerNorUnixNorRpc) {
  EXPECT_EQ(ParseOk("cpu").primary(), TargetId(0));
  EXPECT_EQ(ParseOk("worker(cuda:0),rpc:h:1,unix:/s,vulkan:1,cpu").primary(), TargetId(3));
  EXPECT_EQ(ParseOk("worker(cpu),cpu:1,cuda:0").primary(), TargetId(1));
}

TEST(TargetConfig, NumbersRepeatedWorkersInListOrder) {
  const ExpertSplitTargetConfig config =
      ParseOk("worker(cpu),worker(cuda:0),worker(cpu),cpu,worker(cpu)=1GiB,worker(cuda:0)");
  std::vector<std::string> names;
  for (const ExpertSplitTarget& target : config.targets()) names.push_back(target.name);
  EXPECT_THAT(names, ::testing::ElementsAre("worker(cpu)", "worker(cuda:0)", "worker(cpu)#2", "cpu",
                                            "worker(cpu)#3", "worker(cuda:0)#2"));
  EXPECT_EQ(ParseOk(config.Print()), config);
}

TEST(TargetConfig, Takes255TargetsAndNoMore) {
  std::string list = "cpu";
  for (int i = 1; i < 255; ++i) list += ",cuda:" + std::to_string(i);
  EXPECT_EQ(ParseOk(list).size(), 255u);
  EXPECT_EQ(ParseOk(ParseOk(list).Print()), ParseOk(list));
  EXPECT_THAT(ErrorOf(list + ",cuda:255"), HasSubstr("more than 255 items"));
}

TEST(TargetConfig, SurvivesEnormousInput) {
  constexpr std::size_t kMany = 1 << 20;
  EXPECT_THAT(ErrorOf(std::string(kMany, ',')), HasSubstr("more than 255 items"));
  EXPECT_THAT(ErrorOf(std::string(kMany, '(')), HasSubstr("(1048576 bytes)"));
  EXPECT_THAT(ErrorOf("cpu=" + std::string(kMany, '9')), HasSubstr("too large"));
  EXPECT_THAT(ErrorOf("cpu=0." + std::string(kMany, '9')), HasSubstr("plain bytes"));
  EXPECT_THAT(ErrorOf("cuda:" + std::string(kMany, '9')), HasSubstr("too large"));
  std::string nested;
  for (int i = 0; i < 100'000; ++i) nested += "worker(";
  const std::string message = ErrorOf(nested + "cpu" + std::string(100'000, ')'));
  EXPECT_THAT(message, HasSubstr("worker inside a worker"));
  EXPECT_LT(message.size(), 600u);
}

TEST(BackendKind, NamesAndWordsAgree) {
  EXPECT_EQ(AllBackendKinds().size(), 7u);
  for (const BackendKind kind : AllBackendKinds()) {
    EXPECT_EQ(ParseBackendKind(BackendKindName(kind)), kind);
  }
  EXPECT_EQ(ParseBackendKind("rocm"), BackendKind::kHip);
  EXPECT_EQ(ParseBackendKind("cpu"), std::nullopt);
  EXPECT_EQ(ParseBackendKind(""), std::nullopt);
}

}  // namespace
}  // namespace moe
