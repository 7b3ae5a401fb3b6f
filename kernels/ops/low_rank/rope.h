// Rotary position embedding of rows that were kept as they are before it (profile/rope.h has the frequencies), for host
// and device, with the same bits on both.
#ifndef SEINE_KERNELS_OPS_LOW_RANK_ROPE_H_
#define SEINE_KERNELS_OPS_LOW_RANK_ROPE_H_

#include <cstdint>

#include "kernels/types.h"

namespace seine {

// Sine and cosine in fp64, absolute error below 1e-15 for |angle| < 2^31, in one fixed order of operations. The angle
// is n pi/2 + r with |r| <= pi/4 up to rounding; pi/2 comes in three parts, the first two of 22 bits, whose products
// with n are exact. Of r, Taylor's series to r^17.
struct SinCos {
  double sin, cos;
};
SEINE_HD inline SinCos SinCosOf(double angle) {
  const double turns = angle * 0.63661977236758138;
  const int64_t n = static_cast<int64_t>(turns + (turns < 0 ? -0.5 : 0.5));
  const double m = static_cast<double>(n);
  const double r = ((angle - m * 0x1.921fb0p+0) - m * 0x1.5110b0p-22) - m * 0x1.18469898cc517p-44, z = r * r;
  double s = 1.0 - z * (1.0 / 272);  // 16 * 17, 14 * 15, ...
  s = 1.0 - z * (1.0 / 210) * s;
  s = 1.0 - z * (1.0 / 156) * s;
  s = 1.0 - z * (1.0 / 110) * s;
  s = 1.0 - z * (1.0 / 72) * s;
  s = 1.0 - z * (1.0 / 42) * s;
  s = 1.0 - z * (1.0 / 20) * s;
  s = r * (1.0 - z * (1.0 / 6) * s);
  double c = 1.0 - z * (1.0 / 240);
  c = 1.0 - z * (1.0 / 182) * c;
  c = 1.0 - z * (1.0 / 132) * c;
  c = 1.0 - z * (1.0 / 90) * c;
  c = 1.0 - z * (1.0 / 56) * c;
  c = 1.0 - z * (1.0 / 30) * c;
  c = 1.0 - z * (1.0 / 12) * c;
  c = 1.0 - z * 0.5 * c;
  const int quarter = static_cast<int>(n & 3);
  const bool odd = quarter % 2 == 1;
  const double sin = odd ? c : s, cos = odd ? s : c;
  return {quarter < 2 ? sin : -sin, quarter == 0 || quarter == 3 ? cos : -cos};
}

// Pair i turns by position * inv_freq[i] radians.
struct RopeTurns {
  const double* inv_freq = nullptr;  // [D / 2]; nullptr: nothing turns
  bool interleaved = false;          // coordinates 2i and 2i + 1 are a pair, else i and i + D / 2
};

// Turns pair i of row [D] to `position`, in fp64.
SEINE_HD inline void TurnPair(const RopeTurns& rope, int head_dim, int pair, int32_t position, float* row) {
  const SinCos turn = SinCosOf(static_cast<double>(position) * rope.inv_freq[pair]);
  float& first = row[rope.interleaved ? 2 * pair : pair];
  float& second = row[rope.interleaved ? 2 * pair + 1 : pair + head_dim / 2];
  const double a = static_cast<double>(first), b = static_cast<double>(second);
  first = static_cast<float>(a * turn.cos - b * turn.sin);
  second = static_cast<float>(a * turn.sin + b * turn.cos);
}

}  // namespace seine

#endif  // SEINE_KERNELS_OPS_LOW_RANK_ROPE_H_
