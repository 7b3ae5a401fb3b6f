// Plots are well-formed and stay inside their frame.
#include "bench/svg_plot.h"

#include <gtest/gtest.h>

#include <regex>
#include <stack>

#include "tests/bench/test_util.h"

namespace seine::bench {
namespace {

// Every tag closed in order, every & an entity, no < inside text: what an XML parser asks of such a file.
std::string WhatIsWrong(const std::string& svg) {
  std::stack<std::string> open;
  const std::regex tag("<(/?)([a-z]+)((?: [a-zA-Z0-9-]+=\"[^\"<&]*\")*)(/?)>"), entity("&(amp|lt|gt|quot);");
  size_t at = 0;
  for (std::sregex_iterator it(svg.begin(), svg.end(), tag), end; it != end; ++it) {
    const std::string text = svg.substr(at, it->position() - at);
    const std::string bare = std::regex_replace(text, entity, "");
    if (bare.find_first_of("<>&") != std::string::npos) return "stray markup in: " + text;
    at = it->position() + it->length();
    if ((*it)[1] == "/") {
      if (open.empty() || open.top() != (*it)[2]) return "closes what is not open: " + it->str();
      open.pop();
    } else if ((*it)[4] != "/") {
      open.push((*it)[2]);
    }
  }
  if (svg.find_first_not_of(" \n", at) != std::string::npos) return "text after the end";
  return open.empty() ? "" : "never closed: " + open.top();
}

Plot SmallPlot() {
  Plot plot;
  plot.title = "Recall <at> \"100\" & more";
  plot.x_label = "us";
  plot.y_label = "recall";
  plot.log_x = true;
  plot.series = {{"ours & theirs", {{10, .5}, {100, .9}, {1000, .99}}, true, true}, {"one", {{50, .7}}, true, true}};
  return plot;
}

TEST(SvgPlotTest, IsWellFormed) {
  const std::string svg = RenderSvg(SmallPlot());
  EXPECT_EQ(WhatIsWrong(svg), "");
  EXPECT_NE(svg.find("Recall &lt;at&gt; &quot;100&quot; &amp; more"), std::string::npos);
  EXPECT_NE(svg.find("ours &amp; theirs"), std::string::npos);
}

TEST(SvgPlotTest, CheckerBites) {
  EXPECT_NE(WhatIsWrong("<svg><text>a</svg>"), "");
  EXPECT_NE(WhatIsWrong("<svg><text>a & b</text></svg>"), "");
  EXPECT_NE(WhatIsWrong("<svg>"), "");
}

TEST(SvgPlotTest, EveryPointLiesInTheFrameAndIsDrawn) {
  const std::string svg = RenderSvg(SmallPlot());
  const std::regex circle("<circle cx=\"([0-9.-]+)\" cy=\"([0-9.-]+)\"");
  int points = 0;
  double last_x = 0;
  for (std::sregex_iterator it(svg.begin(), svg.end(), circle), end; it != end; ++it, ++points) {
    const double x = std::stod((*it)[1]), y = std::stod((*it)[2]);
    EXPECT_GE(x, 70);
    EXPECT_LE(x, 960 - 330);
    EXPECT_GE(y, 64);
    EXPECT_LE(y, 480 - 58);
    if (points > 0 && points < 3) {
      EXPECT_GT(x, last_x);
    }
    last_x = x;
  }
  EXPECT_EQ(points, 4);
}

TEST(SvgPlotTest, EmptyAndSinglePointsStillDraw) {
  Plot plot;
  EXPECT_EQ(WhatIsWrong(RenderSvg(plot)), "");
  plot.series = {{"point", {{0, 0}}, true, true}};
  EXPECT_EQ(WhatIsWrong(RenderSvg(plot)), "");
  EXPECT_EQ(RenderSvg(plot).find("nan"), std::string::npos);
}

TEST(SvgPlotTest, TicksAreRound) {
  EXPECT_EQ(Ticks(0, 10, false, 5), (std::vector<double>{0, 2, 4, 6, 8, 10}));
  EXPECT_EQ(Ticks(3, 300, true, 8), (std::vector<double>{5, 10, 20, 50, 100, 200}));
  EXPECT_EQ(Ticks(1, 1e6, true, 8), (std::vector<double>{1, 10, 100, 1e3, 1e4, 1e5, 1e6}));
}

TEST(SvgPlotTest, WritesWholeOrNotAtAll) {
  const TestFolder folder;
  EXPECT_TRUE(WriteSvg(SmallPlot(), folder.File("plot.svg")).ok());
  EXPECT_EQ(ReadFile(folder.File("plot.svg")), RenderSvg(SmallPlot()));
  const absl::Status status = WriteSvg(SmallPlot(), folder.File("no/such/folder.svg"));
  EXPECT_FALSE(status.ok());
  EXPECT_EQ(status.message(), "--plot: cannot write " + folder.File("no/such/folder.svg"));
}

}  // namespace
}  // namespace seine::bench
