// What block_attention's twins share: the softmax in powers of two, one number at a time.
#ifndef SEINE_KERNELS_OPS_ATTEND_BLOCK_SOFTMAX_H_
#define SEINE_KERNELS_OPS_ATTEND_BLOCK_SOFTMAX_H_

#include <cmath>
#include <cstdint>

#include "kernels/math.h"
#include "kernels/ops/attend/block_attention.h"

namespace seine::cpu {

inline constexpr float kLog2E = 1.44269504f, kLn2 = 0.693147181f;
inline constexpr float kLazyExponent = 8;      // how far a logit may exceed a row's maximum before that is raised
inline constexpr float kLeastExponent = -127;  // 2^x is 0 from there on
inline constexpr float kNothingSeen = -1e30f;  // a row's maximum before it has seen a key
inline constexpr float kHidden = -2e30f;       // the logit of a key that a row does not see
inline constexpr int kNumExp2Terms = 7;        // ln(2)^i / i!, the highest power first: 1e-7 of 2^x on [-1/2, 1/2]
inline constexpr float kExp2Terms[kNumExp2Terms] = {
    1.54035304e-4f, 1.33335581e-3f, 9.61812911e-3f, 5.55041087e-2f, 2.40226507e-1f, 6.93147181e-1f, 1.0f};

// Under a cap c tanh(x / c) = c (1 - t) / (1 + t) sign(x), t = 2^(|x| CapExponent(c)); x and c in powers of two.
inline float CapExponent(float cap) { return -2 * kLog2E / cap; }

// Bit 8 i + j: key j of run i is there.
inline uint64_t PresentKeys(const KeyTile& tile, int64_t num_places) {
  uint64_t present = 0;
  for (int i = 0; i < kTileRuns; ++i) {
    const int64_t left = tile.runs[i] < 0 ? 0 : num_places - tile.runs[i];
    const uint64_t run = left >= kRunKeys ? 0xFF : left <= 0 ? 0 : (uint64_t{1} << left) - 1;
    present |= run << (i * kRunKeys);
  }
  return present;
}

inline float LogSumExpOf(float most, float total) { return total > 0 ? most * kLn2 + LogPositive(total) : -INFINITY; }

}  // namespace seine::cpu

#endif  // SEINE_KERNELS_OPS_ATTEND_BLOCK_SOFTMAX_H_
