// See plot.h.
#include "bench/report/plot.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"

namespace seine::bench {
namespace {

constexpr double kLeft = 70, kTop = 64, kBottom = 58;     // margins
constexpr double kPlotWidth = 560, kPlotHeight = 358;     // of the axes
constexpr double kLegend = 18, kSwatch = 28, kEdge = 24;  // right of the axes: gap, line and gap, gap after the text
constexpr double kRow = 20;                               // of the legend
constexpr double kFontSize = 12, kTitleSize = 16;
// Okabe and Ito's palette, told apart by colour-blind readers too.
constexpr const char* kColours[] = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                    "#e69f00", "#56b4e9", "#000000", "#8c6d31"};

std::string Escape(const std::string& text) {
  return absl::StrReplaceAll(text, {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"\"", "&quot;"}});
}

// At most so wide is a text in any usual sans-serif: letters as DejaVu Sans has them, a wide one, in four classes.
double WidthOf(const std::string& text, double size) {
  double ems = 0;
  for (const char c : text) {
    const auto is_one_of = [c](const char* letters) { return std::strchr(letters, c) != nullptr; };
    if ((c & 0x80) != 0 || is_one_of("mwMW%@")) {
      ems += 1;
    } else if (is_one_of(" .,:;'|!iljftrI()[]/-")) {
      ems += .42;
    } else {
      ems += (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' ? .65 : .84;
    }
  }
  return ems * size;
}

// One axis: data values to pixels.
struct Axis {
  double low = 0, high = 1;
  double from = 0, to = 1;  // pixels
  bool log = false;
  double operator()(double v) const {
    const double t = log ? std::log(v / low) / std::log(high / low) : (v - low) / (high - low);
    return from + t * (to - from);
  }
};

// The range of the data with a little air; a single value gets a range of its own size about it.
Axis MakeAxis(const Plot& plot, bool x, double from, double to) {
  Axis axis{INFINITY, -INFINITY, from, to, x ? plot.log_x : plot.log_y};
  for (const Series& s : plot.series) {
    for (const auto& [px, py] : s.points) {
      axis.low = std::min(axis.low, x ? px : py);
      axis.high = std::max(axis.high, x ? px : py);
    }
  }
  if (axis.low > axis.high) axis.low = axis.log ? 1 : 0, axis.high = axis.log ? 10 : 1;
  if (axis.log) {
    const double air = std::max(1.1, std::pow(axis.high / axis.low, .04));
    axis.low /= air, axis.high *= air;
  } else {
    double air = .04 * (axis.high - axis.low);
    if (air == 0) air = std::max(.5, .1 * std::fabs(axis.high));
    axis.low -= air, axis.high += air;
  }
  return axis;
}

std::string Text(double x, double y, const char* anchor, const std::string& extra, const std::string& text) {
  return absl::StrFormat("<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\"%s>%s</text>\n", x, y, anchor, extra,
                         Escape(text));
}

std::string Stroke(double x1, double y1, double x2, double y2, const char* colour) {
  return absl::StrFormat("<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"%s\"/>\n", x1, y1, x2, y2,
                         colour);
}

std::string Label(double v) {
  if (v != 0 && (std::fabs(v) >= 1e6 || std::fabs(v) < 1e-4)) return absl::StrFormat("%.0e", v);
  return absl::StrFormat("%g", v);
}

std::string Grid(const Plot& plot, const Axis& x, const Axis& y) {
  std::string svg;
  for (double v : Ticks(x.low, x.high, x.log, 8)) {
    svg += Stroke(x(v), y.from, x(v), y.to, "#e4e4e4") + Text(x(v), y.from + 18, "middle", "", Label(v));
  }
  for (double v : Ticks(y.low, y.high, y.log, 7)) {
    svg += Stroke(x.from, y(v), x.to, y(v), "#e4e4e4") + Text(x.from - 8, y(v) + 4, "end", "", Label(v));
  }
  svg += Stroke(x.from, y.from, x.to, y.from, "#444") + Stroke(x.from, y.from, x.from, y.to, "#444");
  svg += Text((x.from + x.to) / 2, y.from + 44, "middle", "", plot.x_label);
  const double middle = (y.from + y.to) / 2;
  svg += Text(18, middle, "middle", absl::StrFormat(" transform=\"rotate(-90 18 %.1f)\"", middle), plot.y_label);
  svg += Text(kLeft, 26, "start", absl::StrFormat(" font-size=\"%g\" font-weight=\"bold\"", kTitleSize), plot.title);
  return svg + Text(kLeft, 46, "start", " fill=\"#666\"", plot.subtitle);
}

// Colours in turn; the second time round curves are dashed and markers hollow.
struct Style {
  const char* colour;
  bool second;
};
Style StyleOf(size_t row) { return {kColours[row % std::size(kColours)], row / std::size(kColours) % 2 == 1}; }

std::string Curve(const Series& series, const Style& style, const Axis& x, const Axis& y) {
  std::string points, marks;
  for (const auto& [px, py] : series.points) {
    absl::StrAppend(&points, absl::StrFormat("%.1f,%.1f ", x(px), y(py)));
    if (!series.markers) continue;
    marks +=
        absl::StrFormat("<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3.5\" fill=\"%s\" stroke=\"%s\" stroke-width=\"1.5\"/>\n",
                        x(px), y(py), style.second ? "#fff" : style.colour, style.colour);
  }
  if (!series.line || series.points.size() < 2) return marks;
  return absl::StrFormat("<polyline points=\"%s\" fill=\"none\" stroke=\"%s\" stroke-width=\"2\"%s/>\n", points,
                         style.colour, style.second ? " stroke-dasharray=\"6 4\"" : "") +
         marks;
}

std::string LegendEntry(const Series& series, const Style& style, size_t row) {
  const double x = kLeft + kPlotWidth + kLegend, y = kTop + 12 + kRow * static_cast<double>(row);
  return absl::StrFormat("<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"%s\" stroke-width=\"4\"%s/>\n",
                         x, y - 4, x + 20, y - 4, style.colour, style.second ? " stroke-dasharray=\"6 4\"" : "") +
         Text(x + kSwatch, y, "start", "", series.name);
}

}  // namespace

std::vector<double> Ticks(double low, double high, bool log, int count) {
  std::vector<double> ticks;
  if (log) {
    for (int e = static_cast<int>(std::floor(std::log10(low))); e <= std::log10(high); ++e) {
      for (double m : {1., 2., 5.}) {
        const double v = m * std::pow(10., e);
        if (v >= low && v <= high) ticks.push_back(v);
      }
    }
    if (static_cast<int>(ticks.size()) <= count + 2) return ticks;
    std::vector<double> powers;
    for (double v : ticks) {
      const double e = std::log10(v);
      if (std::fabs(e - std::round(e)) < 1e-9) powers.push_back(v);
    }
    return powers;
  }
  const double raw = (high - low) / count, power = std::pow(10., std::floor(std::log10(raw)));
  double step = 10 * power;
  for (double m : {5., 2., 1.}) {
    if (m * power >= raw) step = m * power;
  }
  for (double i = std::ceil(low / step); i * step <= high; ++i) ticks.push_back(i * step + 0.);  // + 0: no -0
  return ticks;
}

std::string RenderSvg(const Plot& plot) {
  const Axis x = MakeAxis(plot, true, kLeft, kLeft + kPlotWidth), y = MakeAxis(plot, false, kTop + kPlotHeight, kTop);
  // Bold letters are a ninth wider.
  double width = std::max(WidthOf(plot.title, kTitleSize) * 10 / 9, WidthOf(plot.subtitle, kFontSize)) + kLeft;
  width = std::max(width, kLeft + kPlotWidth);
  for (const Series& series : plot.series) {
    width = std::max(width, kLeft + kPlotWidth + kLegend + kSwatch + WidthOf(series.name, kFontSize));
  }
  width = std::ceil(width + kEdge);
  const double height =
      std::max(kTop + kPlotHeight + kBottom, kTop + kRow * static_cast<double>(plot.series.size()) + kEdge);
  std::string svg = absl::StrFormat(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %g %g\" width=\"%g\" height=\"%g\" "
      "font-family=\"sans-serif\" font-size=\"%g\" fill=\"#222\">\n<rect width=\"100%%\" height=\"100%%\" "
      "fill=\"#fff\"/>\n",
      width, height, width, height, kFontSize);
  svg += Grid(plot, x, y);
  for (size_t i = 0; i < plot.series.size(); ++i) {
    svg += Curve(plot.series[i], StyleOf(i), x, y) + LegendEntry(plot.series[i], StyleOf(i), i);
  }
  return svg + "</svg>\n";
}

}  // namespace seine::bench
