#ifndef SEINE_BENCH_MACHINE_MEDIAN_H_
#define SEINE_BENCH_MACHINE_MEDIAN_H_

#include <algorithm>
#include <vector>

namespace seine::bench {

// 0 of none.
inline double Median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

}  // namespace seine::bench

#endif  // SEINE_BENCH_MACHINE_MEDIAN_H_
