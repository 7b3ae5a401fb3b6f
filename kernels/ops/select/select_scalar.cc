// The plain twins of select.h.
#include "kernels/ops/select/select.h"

#include <algorithm>

namespace seine::cpu::scalar {

void Range(const float* scores, size_t n, float* smallest, float* largest) {
  const auto [low, high] = std::minmax_element(scores, scores + n);
  *smallest = *low;
  *largest = *high;
}

size_t CountAbove(const float* scores, size_t n, float value) {
  return static_cast<size_t>(std::count_if(scores, scores + n, [&](float s) { return s > value; }));
}

void GatherBetween(const float* scores, size_t n, float low, float high, float* out) {
  for (size_t i = 0; i < n; ++i) {
    if (scores[i] > low && scores[i] <= high) *out++ = scores[i];
  }
}

size_t PlacesAbove(const float* scores, size_t n, const Cut& cut, uint32_t* out) {
  size_t size = 0, ties = cut.ties;
  for (size_t i = 0; i < n; ++i) {
    const bool tie = scores[i] == cut.value && ties > 0;
    if (scores[i] > cut.value || tie) out[size++] = static_cast<uint32_t>(i);
    ties -= tie;
  }
  return size;
}

}  // namespace seine::cpu::scalar
