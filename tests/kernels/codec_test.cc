// The rsq codec: sizes, accuracy of its estimates against float64, centres, and keys at the edge.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/kernels/test_util.h"

namespace seine {
namespace {

TEST(RsqCodec, BytesAKey) {
  RsqOptions options;  // head_dim 128, windows of 64
  const CodeLayout layout = MakeRsqCodec(options)->layout();
  EXPECT_EQ(layout.coarse_bytes, 16);
  EXPECT_EQ(layout.fine_bytes, 64);  // one cache line: 48 magnitudes, 16 weights
  const double bytes = static_cast<double>(CodeBytes(layout, 2048)) / 2048;
  EXPECT_LE(16 + 1 + 64, 84);  // per key: signs, factor, record
  EXPECT_LT(bytes, 84);        // with centres and bases as well
  EXPECT_NEAR(bytes, 81 + 140 / 64.0, .01);
  options.head_dim = 64;
  EXPECT_NEAR(static_cast<double>(CodeBytes(MakeRsqCodec(options)->layout(), 2048)) / 2048, 41 + 76 / 64.0, .01);
}

TEST(RsqCodec, FourBitEstimatesAreNearTheInnerProduct) {
  for (const int dim : kTestHeadDims) {
    RsqOptions options;
    options.head_dim = dim;
    const Zone zone(Keys(512, dim, 77), dim, options);
    constexpr int kQueries = 8, kEstimates = 512 * kQueries;
    double error = 0, spread = 0, bias = 0;
    for (int q = 0; q < kQueries; ++q) {
      const std::vector<float> query = Gaussian(dim, 78 + q);
      const std::vector<float> got = Estimates(zone, query);
      for (int i = 0; i < 512; ++i) {
        const double want = Dot64(&zone.keys[static_cast<size_t>(i) * dim], query.data(), dim);
        error += (got[i] - want) * (got[i] - want);
        bias += got[i] - want;
        spread += Dot64(query.data(), query.data(), dim);  // a unit-variance residual's own variance
      }
    }
    EXPECT_LT(std::sqrt(error / spread), .12) << dim;  // 4 bits: about a tenth of the residual's spread
    // A query's rounding to int8 meets the same centre in each key of a window.
    EXPECT_LT(std::fabs(bias) / kEstimates, .02 * std::sqrt(spread / kEstimates)) << dim;
  }
}

TEST(RsqCodec, CentringShrinksTheErrorOfOffsetKeys) {
  double error[2];
  for (const bool centred : {false, true}) {
    RsqOptions options;
    options.centre = centred ? Centre::kWindow : Centre::kNone;
    const Zone zone(Keys(512, 128, 5), 128, options);
    error[centred] = 0;
    for (int q = 0; q < 8; ++q) {
      const std::vector<float> query = Gaussian(128, 6 + q);
      const std::vector<float> got = Estimates(zone, query);
      for (int i = 0; i < 512; ++i) {
        error[centred] += std::pow(got[i] - Dot64(&zone.keys[static_cast<size_t>(i) * 128], query.data(), 128), 2);
      }
    }
  }
  EXPECT_LT(error[1], .5 * error[0]);
}

TEST(RsqCodec, ZeroKeysAndQueriesScoreZeroWithoutNaN) {
  RsqOptions options;
  options.centre = Centre::kNone;
  const Zone zero(std::vector<float>(128 * 64, 0.0f), 128, options);
  for (const float s : Estimates(zero, Gaussian(128, 1))) EXPECT_EQ(s, 0);
  const Zone zone(Keys(64, 128, 2), 128, options);
  for (const float s : Estimates(zone, std::vector<float>(128, 0.0f))) EXPECT_EQ(s, 0);
  for (const float scale : {1e-37f, 1e-20f, 1e15f}) {  // subnormal squares, large norms
    std::vector<float> keys = Gaussian(128 * 64, 3, scale);
    const Zone tiny(keys, 128, options);
    for (const float s : Estimates(tiny, Gaussian(128, 4))) EXPECT_TRUE(std::isfinite(s));
  }
}

TEST(RsqCodec, AWindowsCodeDependsOnItsOwnKeysAlone) {
  RsqOptions options;
  const std::vector<float> keys = Keys(512, 128, 9);
  const Zone all(keys, 128, options),
      one(std::vector<float>(keys.begin() + 192 * 128, keys.begin() + 256 * 128), 128, options);
  EXPECT_EQ(memcmp(all.segments[0].coarse + 192 * 16, one.segments[0].coarse, 64 * 16), 0);
  EXPECT_EQ(memcmp(all.segments[0].fine + 192 * 64, one.segments[0].fine, 64 * 64), 0);
  EXPECT_EQ(memcmp(all.segments[0].centre + 3 * 128, one.segments[0].centre, 128), 0);
  EXPECT_EQ(all.segments[0].factor_base[3], one.segments[0].factor_base[0]);
}

TEST(RsqCodec, SeedsGiveDifferentRotations) {
  RsqOptions a, b;
  b.seed = 2;
  const std::vector<float> keys = Keys(64, 128, 9);
  const Zone first(keys, 128, a), second(keys, 128, b), again(keys, 128, a);
  EXPECT_NE(memcmp(first.segments[0].coarse, second.segments[0].coarse, 1024), 0);
  EXPECT_EQ(memcmp(first.segments[0].coarse, again.segments[0].coarse, 1024), 0);
}

}  // namespace
}  // namespace seine
