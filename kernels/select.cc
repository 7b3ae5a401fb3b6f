// Exact selection by bisection: a counting pass runs at the speed of the cache, where a partition mispredicts branches.
#include "kernels/select.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "kernels/cpu/ops.h"

namespace seine {
namespace {

constexpr size_t kFew = 128;    // scores that are simply sorted out
constexpr int kMaxPasses = 24;  // counting passes; enough but for scores that span many orders of magnitude

Cut CutOf(std::vector<float>* values, size_t m) {
  std::nth_element(values->begin(), values->begin() + (m - 1), values->end(), std::greater<float>());
  const float cut = (*values)[m - 1];
  const size_t above = std::count_if(values->begin(), values->begin() + (m - 1), [&](float v) { return v > cut; });
  return {cut, m - above};
}

}  // namespace

Cut FindCut(const float* scores, size_t n, size_t m, std::vector<float>* scratch) {
  if (n <= kFew) {
    scratch->assign(scores, scores + n);
    return CutOf(scratch, m);
  }
  // The cut lies in (low, high]: fewer than m exceed high, at least m exceed low.
  float low, high;
  cpu::Range(scores, n, &low, &high);
  low = std::nextafter(low, -std::numeric_limits<float>::infinity());
  size_t above_low = n, above_high = 0;
  for (int pass = 0; pass < kMaxPasses && above_low - above_high > kFew; ++pass) {
    const float middle = low + (high - low) * 0.5f;
    if (!(middle > low && middle < high)) break;
    const size_t above = cpu::CountAbove(scores, n, middle);
    if (above < m) {
      high = middle;
      above_high = above;
    } else {
      low = middle;
      above_low = above;
    }
  }
  scratch->resize(above_low - above_high);
  cpu::GatherBetween(scores, n, low, high, scratch->data());
  return CutOf(scratch, m - above_high);
}

void SelectLargest(const float* scores, size_t n, size_t m, std::vector<float>* scratch, std::vector<uint32_t>* out) {
  if (m >= n) {
    out->resize(n);
    for (size_t i = 0; i < n; ++i) (*out)[i] = static_cast<uint32_t>(i);
    return;
  }
  if (m == 0) return out->clear();
  const Cut cut = FindCut(scores, n, m, scratch);
  out->resize(m + 16);
  out->resize(cpu::PlacesAbove(scores, n, cut, out->data()));
}

}  // namespace seine
