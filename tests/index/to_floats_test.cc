// Elements of tensors as fp32: every half and every bfloat16, at any count and any address.
#include "index/storage/to_floats.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/math.h"

namespace seine {
namespace {

constexpr size_t kEvery = 1 << 16;

// All bit patterns, behind `offset` bytes.
std::vector<uint8_t> EveryPattern(size_t offset) {
  std::vector<uint8_t> raw(offset + 2 * kEvery);
  for (size_t i = 0; i < kEvery; ++i) {
    const auto bits = static_cast<uint16_t>(i);
    memcpy(raw.data() + offset + 2 * i, &bits, sizeof(bits));
  }
  return raw;
}

TEST(ToFloatsTest, EveryPatternOfSixteenBits) {
  for (const DType dtype : {DType::kFloat16, DType::kBFloat16}) {
    for (const size_t offset : {0, 1, 2}) {
      const std::vector<uint8_t> raw = EveryPattern(offset);
      std::vector<float> got(kEvery);
      ToFloats(dtype, raw.data() + offset, kEvery, got.data());
      for (size_t i = 0; i < kEvery; ++i) {
        const auto bits = static_cast<uint16_t>(i);
        const float want = dtype == DType::kFloat16 ? HalfToFloat(bits) : Bf16ToFloat(bits);
        if (std::isnan(want)) {
          ASSERT_TRUE(std::isnan(got[i])) << i;
        } else {
          ASSERT_EQ(std::bit_cast<uint32_t>(got[i]), std::bit_cast<uint32_t>(want)) << i;
        }
      }
    }
  }
}

TEST(ToFloatsTest, WritesAsManyAsAreAskedFor) {
  const std::vector<float> ones(64, 1);
  const std::vector<uint16_t> halves(64, FloatToHalf(1));
  for (size_t count = 0; count <= 40; ++count) {
    for (const DType dtype : {DType::kFloat32, DType::kFloat16}) {
      std::vector<float> got(count + 1, 7);
      ToFloats(dtype, dtype == DType::kFloat32 ? static_cast<const void*>(ones.data()) : halves.data(), count,
               got.data());
      for (size_t i = 0; i < count; ++i) ASSERT_EQ(got[i], 1) << count;
      ASSERT_EQ(got[count], 7) << count;
    }
  }
}

}  // namespace
}  // namespace seine
