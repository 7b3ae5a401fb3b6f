#include "kernels/select.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "kernels/cpu/ops.h"

namespace seine {
namespace {

constexpr size_t kSmall = 2048;   // below: select in a copy
constexpr size_t kSample = 1024;  // strided sample that brackets the cut

float NthLargest(std::vector<float>* values, size_t n) {
  std::nth_element(values->begin(), values->begin() + n, values->end(), std::greater<float>());
  return (*values)[n];
}

Cut CutOf(std::vector<float>* values, size_t m) {
  const float cut = NthLargest(values, m - 1);
  const size_t above = std::count_if(values->begin(), values->begin() + (m - 1), [&](float v) { return v > cut; });
  return {cut, m - above};
}

}  // namespace

Cut FindCut(const float* scores, size_t n, size_t m, std::vector<float>* scratch) {
  if (n <= kSmall) {
    scratch->assign(scores, scores + n);
    return CutOf(scratch, m);
  }
  const size_t stride = n / kSample;
  scratch->resize(kSample);
  for (size_t i = 0; i < kSample; ++i) (*scratch)[i] = scores[i * stride];
  // The cut's rank in the sample, give or take four standard deviations of a binomial count.
  const double share = static_cast<double>(m) / static_cast<double>(n), rank = share * kSample;
  const double slack = 4 * std::sqrt(rank * (1 - share)) + 2;
  const float high = rank - slack < 0 ? INFINITY : NthLargest(scratch, static_cast<size_t>(rank - slack));
  const float low = rank + slack >= kSample ? -INFINITY : NthLargest(scratch, static_cast<size_t>(rank + slack));
  scratch->resize(n + 16);
  size_t above = 0;
  const size_t inside = cpu::GatherBetween(scores, n, low, high, scratch->data(), &above);
  scratch->resize(inside);
  if (above < m && m <= above + inside) return CutOf(scratch, m - above);
  scratch->assign(scores, scores + n);
  return CutOf(scratch, m);
}

void SelectLargest(const float* scores, size_t n, size_t m, std::vector<float>* scratch, std::vector<uint32_t>* out) {
  out->resize(n + 16);
  if (m >= n) {
    out->resize(n);
    for (size_t i = 0; i < n; ++i) (*out)[i] = static_cast<uint32_t>(i);
    return;
  }
  out->resize(m == 0 ? 0 : cpu::PlacesAbove(scores, n, FindCut(scores, n, m, scratch), out->data()));
}

}  // namespace seine
