// Sines and cosines against the C library's, and rows turned by them.
#include "kernels/ops/low_rank/rope.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "kernels/ops/low_rank/turn_row.h"
#include "tests/kernels/low_rank_data.h"
#include "tests/kernels/same_bits.h"

namespace seine {
namespace {

TEST(SinCos, AreThoseOfTheAngle) {
  std::mt19937_64 rng(1);
  for (int i = 0; i < 200000; ++i) {
    const double largest = i % 3 == 0 ? 1.0 : i % 3 == 1 ? 131072.0 : 2147483647.0;
    const double angle = std::uniform_real_distribution<double>(-largest, largest)(rng);
    const SinCos got = SinCosOf(angle);
    ASSERT_NEAR(got.sin, std::sin(angle), 1e-15) << angle;
    ASSERT_NEAR(got.cos, std::cos(angle), 1e-15) << angle;
  }
  for (int i = -16; i <= 16; ++i) {  // and where quarters meet
    for (const double off : {-1e-9, 0.0, 1e-9}) {
      const double angle = i * 0.78539816339744831 + off;
      ASSERT_NEAR(SinCosOf(angle).sin, std::sin(angle), 1e-15) << angle;
      ASSERT_NEAR(SinCosOf(angle).cos, std::cos(angle), 1e-15) << angle;
    }
  }
  EXPECT_EQ(SinCosOf(0).sin, 0);
  EXPECT_EQ(SinCosOf(0).cos, 1);
}

TEST(Rope, TurnsPairsOfBothStyles) {
  const std::vector<double> frequencies = {1.0, .01};
  for (const bool interleaved : {false, true}) {
    std::vector<float> row = {1, 2, 3, 4};
    const RopeTurns rope = {frequencies.data(), interleaved};
    TurnPair(rope, 4, 1, 100, row.data());  // by one radian
    const int a = interleaved ? 2 : 1, b = 3;
    const double x = a + 1, y = b + 1;
    EXPECT_FLOAT_EQ(row[a], static_cast<float>(x * std::cos(1.0) - y * std::sin(1.0)));
    EXPECT_FLOAT_EQ(row[b], static_cast<float>(x * std::sin(1.0) + y * std::cos(1.0)));
    EXPECT_EQ(row[0], 1);  // the other pair stays
    EXPECT_EQ(row[interleaved ? 1 : 2], interleaved ? 2 : 3);
  }
}

// Row by row and by vectors: the bits of TurnPair, at positions that meet every quarter and at the last one.
TEST(Rope, RowsTurnAsTheirPairsDo) {
  for (const int dim : {16, 64, 80, 128, 256}) {
    const std::vector<double> frequencies = Frequencies(dim);
    for (const bool interleaved : {false, true}) {
      const RopeTurns rope = {frequencies.data(), interleaved};
      for (const int32_t position : {0, 1, 2, 3, 5, 6, 100, 32767, 131071, 2147483647}) {
        const std::vector<float> row = Gaussian(dim, position);
        std::vector<float> want = row;
        for (int pair = 0; pair < dim / 2; ++pair) TurnPair(rope, dim, pair, position, want.data());
        ExpectSameBits([&] {
          std::vector<float> got = row;
          cpu::TurnRow(rope, dim, position, got.data());
          EXPECT_EQ(got, want) << dim << " " << position;
          std::vector<uint8_t> bits;
          Put(&bits, got.data(), got.size());
          return bits;
        });
      }
    }
  }
}

}  // namespace
}  // namespace seine
