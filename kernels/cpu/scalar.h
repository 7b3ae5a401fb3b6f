// What the plain C++ twins of vector operations share. Sums of floats run in 16 lanes and one tree, as everywhere
// (cpu/simd-inl.h).
#ifndef SEINE_KERNELS_CPU_SCALAR_H_
#define SEINE_KERNELS_CPU_SCALAR_H_

#include <cstdint>
#include <cstring>

#include "kernels/math.h"
#include "kernels/types.h"

namespace seine::cpu::scalar {

// Coordinate j of a row of any type.
inline float At(const void* row, DType dtype, int j) {
  if (dtype == DType::kFloat32) return static_cast<const float*>(row)[j];
  if (IsQuantised(dtype)) {
    const auto* from = static_cast<const uint8_t*>(row) + BytesOf(dtype, j / kScaledValues * kScaledValues);
    uint16_t scale;
    std::memcpy(&scale, from, sizeof(scale));
    from += sizeof(scale);
    const int i = j % kScaledValues, half = i / 16 * 4;
    const int value = dtype == DType::kQ8 ? static_cast<int8_t>(from[i]) : (from[i % 16] >> half & 15) - 8;
    return HalfToFloat(scale) * static_cast<float>(value);
  }
  const uint16_t bits = static_cast<const uint16_t*>(row)[j];
  return dtype == DType::kFloat16 ? HalfToFloat(bits) : Bf16ToFloat(bits);
}

// The sum of lanes[n], n a power of two.
inline float Tree(float* lanes, int n) {
  for (int h = n / 2; h >= 1; h /= 2) {
    for (int i = 0; i < h; ++i) lanes[i] = lanes[i] + lanes[i + h];
  }
  return lanes[0];
}

}  // namespace seine::cpu::scalar

#endif  // SEINE_KERNELS_CPU_SCALAR_H_
