// `expert-split perplexity` against llama-perplexity on the same file and text.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "base/file.h"
#include "program.h"
#include "support/test_models.h"

namespace test {
namespace {

constexpr const char* kContext = "128";

// What llama-perplexity says of the whole text: its line of results by chunk ends in it, rounded to
// four decimals ("[1]450.0224,[2]442.9836,"). Its log thread may lose the end of what it prints,
// the final estimate too, so it is asked again where that happens.
double LlamaPerplexity(const std::string& model, const std::string& text, std::size_t chunks) {
  constexpr int kAttempts = 8;
  const std::string mark = "[" + std::to_string(chunks) + "]";
  std::string said;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    const ProgramResult result =
        RunProgram(LLAMA_PERPLEXITY,
                   {"-m", model, "-f", text, "-c", kContext, "-b", kContext, "-t", "1", "-ngl", "0",
                    "-fa", "off", "--no-repack", "--no-op-offload", "--no-warmup"},
                   {"GGML_VK_VISIBLE_DEVICES"});
    EXPECT_EQ(result.status, 0) << result.err;
    said = result.out + result.err;
    const std::size_t at = said.find(mark);
    // The comma behind it shows that the number is whole.
    if (at != std::string::npos && said.find(',', at) != std::string::npos) {
      return std::strtod(said.c_str() + at + mark.size(), nullptr);
    }
  }
  ADD_FAILURE() << "no result of chunk " << chunks << " in " << kAttempts << " runs: " << said;
  return NAN;
}

class PerplexityPeerTest : public ::testing::TestWithParam<const char*> {};

TEST_P(PerplexityPeerTest, IsLlamaPerplexitysWithinAThousandth) {
  std::string content;
  while (content.size() < 2500) {
    content += "The quick brown fox jumps over the lazy dog, and " +
               std::to_string(content.size()) + " zebras look on. ";
  }
  const std::size_t chunks = content.size() / 128;
  const std::string text = ::testing::TempDir() + "perplexity_peer_" + GetParam() + ".txt";
  ASSERT_TRUE(base::WriteFileAtomically(text, content));
  const std::string model = ModelPath(GetParam());
  const double theirs = LlamaPerplexity(model, text, chunks);
  for (const char* repack : {"auto", "off"}) {
    const ProgramResult ours =
        RunExpertSplit({"perplexity", "--model", model, "--text", text, "--targets", "cpu", "--ctx",
                        kContext, "--threads", "1", "--repack", repack, "--json"},
                       {kNoVulkan});
    ASSERT_EQ(ours.status, 0) << ours.err;
    const double ppl = nlohmann::json::parse(ours.out, nullptr, false).value("ppl", 0.0);
    EXPECT_NEAR(ppl / theirs, 1.0, 1e-3) << ppl << " and " << theirs << ", --repack " << repack;
  }
  std::filesystem::remove(text);
}

INSTANTIATE_TEST_SUITE_P(Models, PerplexityPeerTest,
                         ::testing::Values("tiny-f32", "forward-f32-fused-tied-2",
                                           "forward-f32-one-kv-3", "forward-f16-variants-2",
                                           "forward-f16-tied-nextn", "forward-f16-narrow-3"),
                         [](const auto& param) {
                           std::string name = param.param;
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace test
