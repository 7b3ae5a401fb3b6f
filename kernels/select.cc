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
constexpr size_t kSampled = 8192, kSample = 256;  // scores that a sample of them is worth taking for, and its size

Cut CutOf(std::vector<float>* values, size_t m) {
  std::nth_element(values->begin(), values->begin() + (m - 1), values->end(), std::greater<float>());
  const float cut = (*values)[m - 1];
  const size_t above = std::count_if(values->begin(), values->begin() + (m - 1), [&](float v) { return v > cut; });
  return {cut, m - above};
}

// The cut lies in (low, high]: fewer than m exceed high, at least m exceed low.
struct Bounds {
  float low, high;
  size_t above_low, above_high;
  size_t between() const { return above_low - above_high; }
};

Bounds BoundsOf(const float* scores, size_t n) {
  Bounds b = {0, 0, n, 0};
  cpu::Range(scores, n, &b.low, &b.high);
  b.low = std::nextafter(b.low, -std::numeric_limits<float>::infinity());
  return b;
}

// Closer ones, four standard deviations to either side of where a sample has the cut; a side that falls outside of the
// sample, or that counting proves wrong, stays as it was.
void Sample(const float* scores, size_t n, size_t m, Bounds* b) {
  float sample[kSample];
  for (size_t i = 0; i < kSample; ++i) sample[i] = scores[i * n / kSample];
  const double share = static_cast<double>(m) / static_cast<double>(n), at = share * kSample;
  const double margin = 4 * std::sqrt(at * (1 - share)) + 1;
  if (at + margin < kSample) {
    float* low = sample + static_cast<size_t>(at + margin);
    std::nth_element(sample, low, sample + kSample, std::greater<float>());
    const size_t above = cpu::CountAbove(scores, n, *low);
    if (above >= m) b->low = *low, b->above_low = above;
  }
  if (at > margin) {
    float* high = sample + static_cast<size_t>(at - margin);
    std::nth_element(sample, high, sample + kSample, std::greater<float>());
    const size_t above = cpu::CountAbove(scores, n, *high);
    if (above < m) b->high = *high, b->above_high = above;
  }
}

void Bisect(const float* scores, size_t n, size_t m, Bounds* b) {
  for (int pass = 0; pass < kMaxPasses && b->between() > kFew; ++pass) {
    const float middle = b->low + (b->high - b->low) * 0.5f;
    if (!(middle > b->low && middle < b->high)) return;
    const size_t above = cpu::CountAbove(scores, n, middle);
    if (above < m) {
      b->high = middle;
      b->above_high = above;
    } else {
      b->low = middle;
      b->above_low = above;
    }
  }
}

}  // namespace

Cut FindCut(const float* scores, size_t n, size_t m, std::vector<float>* scratch) {
  if (n <= kFew) {
    scratch->assign(scores, scores + n);
    return CutOf(scratch, m);
  }
  Bounds b = BoundsOf(scores, n);
  if (n >= kSampled) Sample(scores, n, m, &b);
  if (b.between() <= n / 2) {  // bisected where they lie together
    scratch->resize(b.between() + 16);
    cpu::GatherBetween(scores, n, b.low, b.high, scratch->data());
    n = b.between();
    m -= b.above_high;
    b.above_low = n;
    b.above_high = 0;
    scores = scratch->data();
  }
  Bisect(scores, n, m, &b);
  if (scores != scratch->data()) scratch->resize(b.between() + 16);
  cpu::GatherBetween(scores, n, b.low, b.high, scratch->data());
  scratch->resize(b.between());
  return CutOf(scratch, m - b.above_high);
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
