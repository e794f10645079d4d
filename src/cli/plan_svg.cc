#include "cli/plan_svg.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <format>
#include <map>
#include <string_view>
#include <utility>

namespace cli {
namespace {

// Strengths of a colour. Cells of one owner and strength are one path, so that a picture of 30,000
// units stays small.
constexpr int kLevels = 8;
constexpr int kMargin = 16;
constexpr int kLabelWidth = 44;
constexpr int kLegendLine = 22;
constexpr int kTextSize = 13;

struct Colour {
  int red, green, blue;
};

// Told apart with any kind of colour vision; more targets than these take them again.
constexpr std::array<Colour, 8> kColours = {{{0, 114, 178},
                                             {213, 94, 0},
                                             {0, 158, 115},
                                             {204, 121, 167},
                                             {230, 159, 0},
                                             {86, 180, 233},
                                             {110, 80, 40},
                                             {90, 90, 90}}};

// Level 0 is nearly white, the last one the full colour.
std::string Fill(std::size_t target, int level) {
  const Colour colour = kColours[target % kColours.size()];
  const double strength = 0.15 + 0.85 * level / (kLevels - 1);
  const auto mix = [strength](int part) {
    return static_cast<int>(std::lround(255 - strength * (255 - part)));
  };
  return std::format("#{:02x}{:02x}{:02x}", mix(colour.red), mix(colour.green), mix(colour.blue));
}

// Twice a layer's average is full, nothing is palest: a uniform layer is in the middle.
int Level(double share, std::size_t num_experts) {
  const double relative = share * static_cast<double>(num_experts) / 2;
  return static_cast<int>(std::lround(std::clamp(relative, 0.0, 1.0) * (kLevels - 1)));
}

std::string Escaped(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    switch (c) {
      case '&':
        escaped += "&amp;";
        break;
      case '<':
        escaped += "&lt;";
        break;
      case '>':
        escaped += "&gt;";
        break;
      default:
        // Names of files and models may hold anything.
        escaped += c >= ' ' && c <= '~' ? c : '?';
    }
  }
  return escaped;
}

struct Grid {
  std::size_t layers;
  std::size_t experts;
  int cell_width;
  int cell_height;
  int top;

  int width() const { return static_cast<int>(experts) * cell_width; }
  int height() const { return static_cast<int>(layers) * cell_height; }
};

Grid MakeGrid(const moe::ExpertSplitPlan& plan) {
  const int experts = static_cast<int>(plan.num_experts());
  const int layers = static_cast<int>(plan.num_layers());
  return {.layers = plan.num_layers(),
          .experts = plan.num_experts(),
          .cell_width = std::clamp(1536 / experts, 2, 40),
          .cell_height = std::clamp(720 / layers, 8, 24),
          .top = kMargin + static_cast<int>(plan.targets().size() + 2) * kLegendLine};
}

std::string Text(int x, int y, std::string_view text, std::string_view more = {}) {
  return std::format("<text x=\"{}\" y=\"{}\"{}>{}</text>\n", x, y, more, Escaped(text));
}

std::string Legend(const moe::ExpertSplitPlan& plan) {
  const moe::ModelIdentity& model = plan.model();
  int y = kMargin + kTextSize;
  std::string legend =
      Text(kMargin, y,
           std::format("{} {} {}: {} layers x {} experts, plan {}", model.architecture, model.name,
                       model.quantisation, plan.num_layers(), plan.num_experts(),
                       plan.FingerprintText()));
  for (std::size_t t = 0; t < plan.targets().size(); ++t) {
    y += kLegendLine;
    for (int level = 0; level < kLevels; ++level) {
      legend += std::format("<rect x=\"{}\" y=\"{}\" width=\"8\" height=\"{}\" fill=\"{}\"/>\n",
                            kMargin + 8 * level, y - kTextSize, kTextSize + 2, Fill(t, level));
    }
    const moe::TargetId target(t);
    legend += Text(kMargin + 8 * kLevels + 10, y,
                   std::format("{}: {} units, {}, {:.1f} % of the traffic", plan.targets()[t].name,
                               plan.units(target), base::FormatBytes(plan.bytes(target)),
                               100 * plan.expected_share(target)));
  }
  return legend;
}

std::string Labels(const Grid& grid) {
  std::string labels =
      Text(kMargin + kLabelWidth, grid.top - 6, "expert 0", " fill=\"#555\"") +
      Text(kMargin + kLabelWidth + grid.width(), grid.top - 6, std::format("{}", grid.experts - 1),
           " fill=\"#555\" text-anchor=\"end\"");
  // Every tenth where lines are narrow.
  const std::size_t step = grid.cell_height >= kTextSize ? 1 : grid.layers > 20 ? 10 : 2;
  for (std::size_t layer = 0; layer < grid.layers; layer += step) {
    labels += Text(kMargin + kLabelWidth - 8,
                   grid.top + static_cast<int>(layer) * grid.cell_height + grid.cell_height / 2 +
                       kTextSize / 3,
                   std::format("{}", layer), " fill=\"#555\" text-anchor=\"end\"");
  }
  return labels;
}

std::string Cells(const Grid& grid, const moe::ExpertSplitPlan& plan, const moe::Hotness& hotness) {
  std::map<std::pair<std::size_t, int>, std::string> paths;
  for (std::size_t layer = 0; layer < grid.layers; ++layer) {
    const auto kind = [&](std::size_t expert) {
      return std::pair(
          plan.owner(moe::LayerId(layer), moe::ExpertId(expert)).index(),
          Level(hotness.share(moe::LayerId(layer), moe::ExpertId(expert)), grid.experts));
    };
    for (std::size_t expert = 0; expert < grid.experts;) {
      const auto here = kind(expert);
      const std::size_t first = expert;
      while (expert < grid.experts && kind(expert) == here) ++expert;
      const int width = static_cast<int>(expert - first) * grid.cell_width;
      paths[here] += std::format("M{} {}h{}v{}h-{}z", static_cast<int>(first) * grid.cell_width,
                                 static_cast<int>(layer) * grid.cell_height, width,
                                 grid.cell_height - 1, width);
    }
  }
  std::string cells =
      std::format("<g transform=\"translate({} {})\">\n", kMargin + kLabelWidth, grid.top);
  for (const auto& [kind, path] : paths) {
    cells += std::format("<path fill=\"{}\" d=\"{}\"/>\n", Fill(kind.first, kind.second), path);
  }
  return cells + "</g>\n";
}

}  // namespace

std::string PlanSvg(const moe::ExpertSplitPlan& plan, const moe::Hotness& hotness) {
  const Grid grid = MakeGrid(plan);
  const int width = std::max(640, 2 * kMargin + kLabelWidth + grid.width());
  const int height = grid.top + grid.height() + kMargin;
  return std::format(
             "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{}\" height=\"{}\" "
             "viewBox=\"0 0 {} {}\" font-family=\"sans-serif\" font-size=\"{}\">\n"
             "<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n",
             width, height, width, height, kTextSize) +
         Legend(plan) + Labels(grid) + Cells(grid, plan, hotness) + "</svg>\n";
}

}  // namespace cli
