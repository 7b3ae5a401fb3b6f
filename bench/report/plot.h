// Draws curves as a small SVG: axes with round ticks, a grid, a legend. No script, no font files. The drawing is as
// wide and as high as its texts need.
#ifndef SEINE_BENCH_REPORT_PLOT_H_
#define SEINE_BENCH_REPORT_PLOT_H_

#include <string>
#include <utility>
#include <vector>

namespace seine::bench {

struct Series {
  std::string name;
  std::vector<std::pair<double, double>> points;  // drawn in this order
  bool line = true;
  bool markers = true;
};

struct Plot {
  std::string title, subtitle;
  std::string x_label, y_label;
  bool log_x = false;  // every x must then be positive
  bool log_y = false;  // and every y
  std::vector<Series> series;
};

std::string RenderSvg(const Plot& plot);

// Values at which an axis over [low, high] gets its labels, about `count` of them: multiples of 1, 2 or 5 times a power
// of ten; on a logarithmic axis 1, 2 and 5 of every decade, or powers of ten alone where these would be too many.
std::vector<double> Ticks(double low, double high, bool log, int count);

}  // namespace seine::bench

#endif  // SEINE_BENCH_REPORT_PLOT_H_
