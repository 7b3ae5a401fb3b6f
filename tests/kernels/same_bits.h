// Rows of any type, and the check that every target gives the same bits.
#ifndef SEINE_TESTS_KERNELS_SAME_BITS_H_
#define SEINE_TESTS_KERNELS_SAME_BITS_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "tests/kernels/test_util.h"

namespace seine {

// Typed copy of rows with a row stride that misaligns every second row.
struct Typed {
  Typed(const std::vector<float>& x, int dim, DType dtype) {
    const size_t size = SizeOf(dtype), n = x.size() / dim;
    rows.stride_bytes = BytesOf(dtype, dim) + (dtype == DType::kFloat32 ? 4 : 2);
    bytes.resize(rows.stride_bytes * n + 2);
    rows.dtype = dtype;
    rows.data = bytes.data();
    values.resize(x.size());
    for (size_t i = 0; i < x.size() && IsQuantised(dtype); i += 32) {
      Quantise(&x[i], dtype, bytes.data() + i / dim * rows.stride_bytes + BytesOf(dtype, i % dim), &values[i]);
    }
    if (IsQuantised(dtype)) return;
    for (size_t i = 0; i < x.size(); ++i) {
      uint8_t* at = bytes.data() + i / dim * rows.stride_bytes + i % dim * size;
      const uint16_t half = dtype == DType::kBFloat16 ? FloatToBf16(x[i]) : FloatToHalf(x[i]);
      values[i] = dtype == DType::kFloat32 ? x[i] : dtype == DType::kBFloat16 ? Bf16ToFloat(half) : HalfToFloat(half);
      if (dtype == DType::kFloat32) {
        memcpy(at, &x[i], 4);
      } else {
        memcpy(at, &half, 2);
      }
    }
  }
  // 32 values as ggml lays them out.
  static void Quantise(const float* x, DType dtype, uint8_t* out, float* values) {
    float largest = 0;
    for (int i = 0; i < 32; ++i) largest = std::fabs(x[i]) > std::fabs(largest) ? x[i] : largest;
    const uint16_t half = FloatToHalf(dtype == DType::kQ8 ? std::fabs(largest) / 127 : largest / -8);
    const float scale = HalfToFloat(half);
    memcpy(out, &half, 2);
    for (int i = 0; i < 32; ++i) {
      const long q = std::lround(scale == 0 ? 0 : x[i] / scale);
      if (dtype == DType::kQ8) {
        const auto stored = static_cast<int8_t>(std::min(127L, std::max(-127L, q)));
        memcpy(out + 2 + i, &stored, 1);
        values[i] = stored * scale;
      } else {
        const long stored = std::min(15L, std::max(0L, q + 8));
        out[2 + i % 16] |= static_cast<uint8_t>(stored << (i / 16 * 4));
        values[i] = static_cast<float>(stored - 8) * scale;
      }
    }
  }
  // Truncating: any half near x serves.
  static uint16_t FloatToHalf(float x) {
    int exponent;
    const float m = std::frexp(std::fabs(x), &exponent);
    if (x == 0 || exponent < -13) return 0;
    return static_cast<uint16_t>((x < 0 ? 0x8000 : 0) | (exponent + 14) << 10 | (static_cast<int>(m * 2048) & 1023));
  }
  std::vector<uint8_t> bytes;
  std::vector<float> values;
  ConstRows rows;
};

// Runs on every target and compares the bytes that `run` returns with SCALAR's.
template <typename Run>
void ExpectSameBits(Run run) {
  ASSERT_TRUE(cpu::ForceTarget("SCALAR"));
  const std::vector<uint8_t> want = run();
  OnEveryTarget([&](const std::string&) { ASSERT_EQ(run(), want); });
}
// Appends the bytes of data[n].
template <typename T>
void Put(std::vector<uint8_t>* out, const T* data, size_t n) {
  const uint8_t* p = reinterpret_cast<const uint8_t*>(data);
  out->insert(out->end(), p, p + n * sizeof(T));
}

}  // namespace seine

#endif  // SEINE_TESTS_KERNELS_SAME_BITS_H_
