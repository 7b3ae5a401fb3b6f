// A plot as a file: .svg as it is drawn, .png rendered from that by librsvg.
#ifndef SEINE_BENCH_REPORT_PLOT_FILE_H_
#define SEINE_BENCH_REPORT_PLOT_FILE_H_

#include <string>

#include "absl/status/status.h"
#include "bench/report/plot.h"

namespace seine::bench {

// Whether --plot may be written there: the name ends in .svg or .png, and its folder takes a file. Before a long
// computation, for its sake. An empty path, no plot, is right. INVALID_ARGUMENT "--plot: ...".
absl::Status CheckPlotPath(const std::string& path);

// Writes the plot whole or not at all; an empty path asks for none. A PNG has two pixels for each of the SVG's. Errors
// begin with "--plot: ".
absl::Status WritePlot(const Plot& plot, const std::string& path);

}  // namespace seine::bench

#endif  // SEINE_BENCH_REPORT_PLOT_FILE_H_
