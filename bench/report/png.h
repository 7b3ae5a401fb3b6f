// A drawing as a PNG, where the build has librsvg (bench/peers); bench/lean has none.
#ifndef SEINE_BENCH_REPORT_PNG_H_
#define SEINE_BENCH_REPORT_PNG_H_

#include <string>

namespace seine::bench {

bool CanWritePng();
// Writes it with two pixels for each of the SVG's. What went wrong; empty: nothing.
std::string WritePng(const std::string& svg, const std::string& path);

}  // namespace seine::bench

#endif  // SEINE_BENCH_REPORT_PNG_H_
