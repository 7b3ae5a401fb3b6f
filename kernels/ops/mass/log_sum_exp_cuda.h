// Log-sum-exps as the CPU adds them: element i of a run goes to lane i mod 16, one after another
// (ops/search/search_cpu.cc).
#ifndef SEINE_KERNELS_OPS_MASS_LOG_SUM_EXP_CUDA_H_
#define SEINE_KERNELS_OPS_MASS_LOG_SUM_EXP_CUDA_H_

#include <cmath>
#include <cstdint>

#include "kernels/cuda/block.h"
#include "kernels/math.h"
#include "kernels/ops/query/search_items.h"

namespace seine::cuda {

inline constexpr uint32_t kLseTile = 2048;

struct LseShared {
  LseState state;
  uint32_t largest;  // ordered bits
  float terms[kLseTile];
};

SEINE_BODY inline float SetScale(const SearchParams& params, const SearchItem& item) {
  if (params.softmax_scale > 0) return params.softmax_scale;
  return 1.0f / sqrtf(static_cast<float>(item.layout.head_dim));
}

template <typename Block>
SEINE_BODY void BeginLse(Block& block, LseShared& s) {
  block.Lanes([&](int lane) {
    if (lane == 0) s.state.largest = -INFINITY;
    if (lane < 16) s.state.lanes[lane] = 0;
  });
}

// Adds e^(x[i] scale), i < n.
template <typename Block>
SEINE_BODY void AddToLse(Block& block, LseShared& s, const float* x, uint32_t n, float scale) {
  if (n == 0) return;
  block.Lanes([&](int lane) {
    if (lane == 0) s.largest = 0;
  });
  block.Lanes([&](int lane) {
    uint32_t largest = 0;
    for (uint32_t i = lane; i < n; i += block.num_lanes()) largest = Most(largest, OrderedBits(x[i]));
    block.AtomicMax(&s.largest, largest);
  });
  const float before = block.Read(s.state.largest), largest = OrderedFloat(s.largest) * scale;
  const float shift = largest > before ? largest : before;
  block.Lanes([&](int lane) {
    if (largest > before && lane < 16) s.state.lanes[lane] *= ExpNonPositive(before - largest);
    if (lane == 0) s.state.largest = shift;
  });
  for (uint32_t first = 0; first < n; first += kLseTile) {
    const uint32_t count = Least(kLseTile, n - first);
    block.Lanes([&](int lane) {
      for (uint32_t i = lane; i < count; i += block.num_lanes()) {
        s.terms[i] = ExpNonPositive(x[first + i] * scale - shift);
      }
    });
    block.Lanes([&](int lane) {
      if (lane >= 16) return;
      float sum = s.state.lanes[lane];
      for (uint32_t i = lane; i < count; i += 16) sum = sum + s.terms[i];
      s.state.lanes[lane] = sum;
    });
  }
}

SEINE_BODY inline float LseValue(const LseState& state) {
  float sum = 0;
  for (int i = 0; i < 16; ++i) sum += state.lanes[i];
  return sum > 0 ? state.largest + LogPositive(sum) : -INFINITY;
}

}  // namespace seine::cuda

#endif  // SEINE_KERNELS_OPS_MASS_LOG_SUM_EXP_CUDA_H_
