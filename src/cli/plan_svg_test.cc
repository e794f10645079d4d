#include "cli/plan_svg.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <regex>
#include <string>
#include <vector>

#include "moe/plan/test_shape.h"

namespace cli {
namespace {

using ::testing::HasSubstr;

moe::ExpertSplitPlan Plan(const moe::ModelShape& shape, const moe::Hotness& hotness,
                          std::vector<std::uint8_t> owners) {
  auto plan = moe::ExpertSplitPlan::FromOwners(
      shape, hotness, {{"cuda:0", base::Bytes(1 << 30)}, {"worker(cpu)<&>", {}}},
      std::move(owners));
  EXPECT_TRUE(plan) << plan.error().message;
  return *std::move(plan);
}

// Area of all cells in units, whatever they are merged into.
double CellArea(const std::string& svg, double cell_width) {
  double area = 0;
  const std::regex cell("M[0-9]+ [0-9]+h([0-9]+)v([0-9]+)h-[0-9]+z");
  for (auto i = std::sregex_iterator(svg.begin(), svg.end(), cell); i != std::sregex_iterator();
       ++i) {
    area += std::stod((*i)[1]) / cell_width;
  }
  return area;
}

TEST(PlanSvgTest, EveryUnitIsDrawnOnceInTheColourOfItsOwnerAndTraffic) {
  const moe::ModelShape shape = moe::TestShape({100, 100}, 4, 1);
  const moe::Hotness hotness = moe::Hotness::FromCounts(shape, {{9, 1, 0, 0}, {1, 1, 1, 1}});
  const std::string svg = PlanSvg(Plan(shape, hotness, {0, 1, 1, 1, 0, 0, 1, 1}), hotness);
  EXPECT_EQ(CellArea(svg, 40), 8);
  EXPECT_THAT(svg, testing::StartsWith("<svg xmlns=\"http://www.w3.org/2000/svg\""));
  EXPECT_THAT(svg, testing::EndsWith("</svg>\n"));
  // The hottest unit is alone in its owner's full colour; two equal neighbours are one cell.
  EXPECT_THAT(svg, HasSubstr("<path fill=\"#0072b2\" d=\"M0 0h40v23h-40z\"/>"));
  EXPECT_TRUE(std::regex_search(svg, std::regex("d=\"M0 24h80v23h-80z\"")));
  EXPECT_THAT(svg, HasSubstr("worker(cpu)&lt;&amp;&gt;: 5 units"));
  EXPECT_THAT(svg, HasSubstr("cuda:0: 3 units, 300 B, 70.0 % of the traffic"));
}

TEST(PlanSvgTest, AFullSizeModelIsAFileOfAFewHundredKilobytesAtMost) {
  const moe::ModelShape shape = moe::TestShape(std::vector<std::uint64_t>(60, 100), 512, 10);
  std::vector<std::vector<std::uint64_t>> counts(60);
  std::vector<std::uint8_t> owners;
  for (std::size_t unit = 0; unit < shape.num_units(); ++unit) {
    counts[unit / 512].push_back(unit * 2654435761 % 97);
    owners.push_back(static_cast<std::uint8_t>(unit * 40503 % 7 % 2));
  }
  const moe::Hotness hotness = moe::Hotness::FromCounts(shape, counts);
  const std::string svg = PlanSvg(Plan(shape, hotness, owners), hotness);
  EXPECT_EQ(CellArea(svg, 3), 60 * 512);
  EXPECT_LT(svg.size(), 900'000u);
}

}  // namespace
}  // namespace cli
