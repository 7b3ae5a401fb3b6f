// Exact selection by bisection: a counting pass runs at the speed of the cache, where a partition mispredicts branches.
#include "kernels/ops/select/select.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

namespace seine {
namespace {

constexpr size_t kFew = 8;      // scores that are simply sorted out
constexpr size_t kShrink = 8;   // scores are gathered anew where only one in so many is left between the bounds
constexpr int kMaxPasses = 24;  // counting passes; enough but for scores that span many orders of magnitude
constexpr size_t kListed = 4096, kListSample = 512;  // scores of which the best are listed by a sample, and its size
constexpr size_t kSampled = 8192, kSample = 256;     // scores that a sample of them is worth taking for, and its size

Cut CutOf(float* values, size_t n, size_t m) {
  std::nth_element(values, values + (m - 1), values + n, std::greater<float>());
  const float cut = values[m - 1];
  const size_t above = std::count_if(values, values + (m - 1), [&](float v) { return v > cut; });
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

// Bounds four standard deviations to either side of where a sample has the cut; a side that falls outside of the
// sample, or that counting proves wrong, leaves everything within.
Bounds Sample(const float* scores, size_t n, size_t m, std::vector<float>* scratch) {
  float sample[kSample];
  for (size_t i = 0; i < kSample; ++i) sample[i] = scores[i * n / kSample];
  const double share = static_cast<double>(m) / static_cast<double>(n), at = share * kSample;
  const double margin = 4 * std::sqrt(at * (1 - share)) + 1;
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  Bounds b = {-kInfinity, kInfinity, n, 0};
  if (at + margin < kSample) {
    const float low = FindCut(sample, kSample, static_cast<size_t>(at + margin) + 1, scratch).value;
    const size_t above = cpu::CountAbove(scores, n, low);
    if (above >= m) b.low = low, b.above_low = above;
  }
  if (at > margin) {
    const float high = FindCut(sample, kSample, static_cast<size_t>(at - margin) + 1, scratch).value;
    const size_t above = cpu::CountAbove(scores, n, high);
    if (above < m) b.high = high, b.above_high = above;
  }
  return b;
}

// Closer ones, until `few` lie between them or counting no longer tells scores apart.
void Bisect(const float* scores, size_t n, size_t m, size_t few, Bounds* b) {
  for (int pass = 0; pass < kMaxPasses && b->between() > few; ++pass) {
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
  // The scores between the bounds, which may lie in `scratch` already, become all there are.
  const auto gather = [&](Bounds* b) {
    if (scratch->size() < b->between() + 16) scratch->resize(b->between() + 16);
    cpu::GatherBetween(scores, n, b->low, b->high, scratch->data());
    scores = scratch->data();
    n = b->between();
    m -= b->above_high;
    b->above_low = n;
    b->above_high = 0;
  };
  if (n >= kSampled) {
    Bounds b = Sample(scores, n, m, scratch);
    if (b.between() <= n / 2) gather(&b);
  }
  Bounds b = BoundsOf(scores, n);
  for (size_t before = n + 1; n > kFew && n < before;) {
    before = n;
    Bisect(scores, n, m, std::max(kFew, n / kShrink), &b);
    gather(&b);
  }
  if (scores != scratch->data()) scratch->assign(scores, scores + n);
  return CutOf(scratch->data(), n, m);
}

namespace {

// Few of many: a sample gives a bound that a little more than m exceed; these are listed, and the cut is made among
// them. False where the sample has misled.
bool SelectListed(const float* scores, size_t n, size_t m, std::vector<float>* scratch, std::vector<uint32_t>* out) {
  float sample[kListSample];
  for (size_t i = 0; i < kListSample; ++i) sample[i] = scores[i * n / kListSample];
  const double rank = static_cast<double>(m) / static_cast<double>(n) * kListSample;
  const size_t place = static_cast<size_t>(1.1 * rank + 3 * std::sqrt(rank)) + 1;
  if (place >= kListSample) return false;
  const float largest_below = -std::numeric_limits<float>::infinity();
  const float bound = std::nextafter(FindCut(sample, kListSample, place, scratch).value, largest_below);
  static thread_local std::vector<uint32_t> places;  // grow only: vectors fill what they grow by
  static thread_local std::vector<float> listed;
  if (places.size() < n + 16) places.resize(n + 16);
  const size_t count = cpu::PlacesAbove(scores, n, {bound, 0}, places.data());
  if (count < m) return false;
  if (listed.size() < count) listed.resize(count);
  for (size_t i = 0; i < count; ++i) listed[i] = scores[places[i]];
  const Cut cut = FindCut(listed.data(), count, m, scratch);
  out->resize(m + 16);
  out->resize(cpu::PlacesAbove(listed.data(), count, cut, out->data()));
  for (uint32_t& at : *out) at = places[at];
  return true;
}

}  // namespace

void SelectLargest(const float* scores, size_t n, size_t m, std::vector<float>* scratch, std::vector<uint32_t>* out) {
  if (m >= n) {
    out->resize(n);
    for (size_t i = 0; i < n; ++i) (*out)[i] = static_cast<uint32_t>(i);
    return;
  }
  if (m == 0) return out->clear();
  if (n >= kListed && m <= n / 4 && SelectListed(scores, n, m, scratch, out)) return;
  const Cut cut = FindCut(scores, n, m, scratch);
  out->resize(m + 16);
  out->resize(cpu::PlacesAbove(scores, n, cut, out->data()));
}

}  // namespace seine
