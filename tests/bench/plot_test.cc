// Plots are well-formed and stay inside their frame.
#include "bench/report/plot.h"

#include <cairo/cairo.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <regex>
#include <stack>

#include "bench/report/plot_file.h"
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
  EXPECT_TRUE(WritePlot(SmallPlot(), folder.File("plot.svg")).ok());
  EXPECT_EQ(ReadFile(folder.File("plot.svg")), RenderSvg(SmallPlot()));
  EXPECT_TRUE(WritePlot(SmallPlot(), "").ok());  // none is asked for
}

TEST(SvgPlotTest, ThePathIsCheckedBeforeTheWork) {
  const TestFolder folder;
  std::filesystem::create_directory(folder.File("folder.svg"));
  const std::pair<std::string, std::string> wrong[] = {
      {folder.File("no/such/folder.svg"), "cannot write " + folder.File("no/such/folder.svg") + ": No such file"},
      {folder.File("folder.svg"), "Is a directory"},
      {folder.File("plot.pdf"), "plot.pdf ends neither in .svg nor in .png"},
      {folder.File("plot"), "ends neither in .svg nor in .png"}};
  for (const auto& [path, says] : wrong) {
    const absl::Status status = CheckPlotPath(path);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << path;
    EXPECT_EQ(status.message().substr(0, 8), "--plot: ") << status;
    EXPECT_NE(std::string(status.message()).find(says), std::string::npos) << status;
    EXPECT_FALSE(WritePlot(SmallPlot(), path).ok());
  }
  for (const char* name : {"plot.svg", "plot.png", "PLOT.PNG"}) {
    EXPECT_TRUE(CheckPlotPath(folder.File(name)).ok()) << name;
    EXPECT_FALSE(std::filesystem::exists(folder.File(name))) << name;  // nothing is left of the check
  }
  EXPECT_TRUE(CheckPlotPath("").ok());
}

// As cairo reads it back, by itself: the frame is white to its edges, so that no text is cut, and something is drawn.
TEST(SvgPlotTest, NothingIsCutInAPng) {
  const TestFolder folder;
  Plot plot = SmallPlot();
  plot.title = "A title that is a good deal longer than the axes below it are wide, and WWWWWWWWWWW MMMMMMMMMMMM too";
  plot.subtitle = std::string(150, 'w') + " and the rest";
  for (int i = 0; i < 30; ++i) {
    plot.series.push_back({"seine balanced 0.5+1.5, window 64, own profile, refine 300, number " + std::to_string(i) +
                               std::string(i, 'W'),
                           {{20, .1 * i}},
                           true,
                           true});
  }
  const std::string path = folder.File("plot.png");
  ASSERT_TRUE(WritePlot(plot, path).ok());
  EXPECT_EQ(ReadFile(path).substr(0, 8), "\x89PNG\r\n\x1a\n");
  cairo_surface_t* image = cairo_image_surface_create_from_png(path.c_str());
  ASSERT_EQ(cairo_surface_status(image), CAIRO_STATUS_SUCCESS);
  const int width = cairo_image_surface_get_width(image), height = cairo_image_surface_get_height(image);
  const int stride = cairo_image_surface_get_stride(image);
  const unsigned char* pixels = cairo_image_surface_get_data(image);
  const auto ink = [&](int x0, int y0, int x1, int y1) {
    int count = 0;
    for (int y = y0; y < y1; ++y) {
      for (int x = x0; x < x1; ++x) {
        const unsigned char* pixel = pixels + y * stride + 4 * x;
        count += pixel[0] != 255 || pixel[1] != 255 || pixel[2] != 255;
      }
    }
    return count;
  };
  constexpr int kFrame = 10;
  EXPECT_EQ(ink(0, 0, width, kFrame), 0);
  EXPECT_EQ(ink(0, height - kFrame, width, height), 0);
  EXPECT_EQ(ink(0, 0, kFrame, height), 0);
  EXPECT_EQ(ink(width - kFrame, 0, width, height), 0);
  EXPECT_GT(ink(0, 0, width, height), 10000);
  EXPECT_GT(ink(2 * 648, 0, width, height), 5000);  // the legend's letters
  cairo_surface_destroy(image);
}

TEST(SvgPlotTest, EqualRatiosAreEqualStepsOnALogarithmicAxis) {
  Plot plot;
  plot.log_x = plot.log_y = true;
  plot.series.push_back({"curve", {{1, 1}, {10, 10}, {100, 100}}, true, false});
  const std::string svg = RenderSvg(plot);
  const size_t at = svg.find("points=\"");
  ASSERT_NE(at, std::string::npos);
  double x[3], y[3];
  ASSERT_EQ(std::sscanf(svg.c_str() + at, "points=\"%lf,%lf %lf,%lf %lf,%lf", &x[0], &y[0], &x[1], &y[1], &x[2], &y[2]),
            6);
  EXPECT_NEAR(x[1] - x[0], x[2] - x[1], .2);
  EXPECT_NEAR(y[1] - y[0], y[2] - y[1], .2);
  EXPECT_LT(y[2], y[1]);  // upwards
}

}  // namespace
}  // namespace seine::bench
