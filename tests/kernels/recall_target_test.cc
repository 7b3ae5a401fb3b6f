#include "kernels/ops/query/recall_target.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace seine {
namespace {

float CutOf(float noise, const std::vector<float>& x, float target) {
  return TargetCut(noise, x.data(), target, [](auto term) {
    float lanes[kTargetPlaces];
    for (int i = 0; i < kTargetPlaces; ++i) lanes[i] = term(i);
    return TreeOf(lanes);
  });
}

TEST(RecallTarget, NormalShareIsTheNormalDistribution) {
  for (double z = -12; z <= 12; z += .01) {
    EXPECT_NEAR(NormalShare(static_cast<float>(z)), std::erfc(-z / std::sqrt(2.0)) / 2, 2e-4) << z;
  }
  EXPECT_EQ(NormalShare(0), .5f);
  EXPECT_EQ(NormalShare(1e30f), 1.0f);
  EXPECT_EQ(NormalShare(-1e30f), 0.0f);
}

TEST(RecallTarget, SamplesAreWithinTheZoneAndEvenlySpread) {
  for (const int windows : {1, 2, 127, 128, 129, 255, 256, 257, 1000, 16384}) {
    const SampleShape shape = SampleOf(int64_t{windows} * kWindowTokens);
    EXPECT_LE(shape.count, static_cast<uint32_t>(kSampleWindows)) << windows;
    EXPECT_GE(shape.count, static_cast<uint32_t>(std::min(windows, kSampleWindows / 2))) << windows;
    EXPECT_LT(SampledWindow(shape, shape.count - 1), static_cast<uint32_t>(windows));
    EXPECT_GE(SampledWindow(shape, shape.count), static_cast<uint32_t>(windows));
  }
}

TEST(RecallTarget, PlacesRunFromTheFirstToTheLast) {
  for (const uint32_t k : {1u, 2u, 15u, 16u, 17u, 100u, 65536u}) {
    EXPECT_EQ(TargetPlace(0, k), 0u);
    EXPECT_EQ(TargetPlace(kTargetPlaces - 1, k), k - 1);
    for (int i = 1; i < kTargetPlaces; ++i) EXPECT_LE(TargetPlace(i, k) - TargetPlace(i - 1, k), k / 15 + 1);
  }
}

// The share of keys of the given true scores that noise leaves above the cut is the target.
TEST(RecallTarget, TheCutLetsTheTargetThrough) {
  std::vector<float> x;
  for (int i = 0; i < kTargetPlaces; ++i) x.push_back(90 - static_cast<float>(i * i) * .1f);
  float before = INFINITY;
  for (const float target : {.05f, .5f, .9f, .99f, .999f}) {
    for (const float noise : {.3f, 4.0f, 50.0f}) {
      const double cut = CutOf(noise, x, target);
      double share = 0;
      for (const float v : x) share += std::erfc((cut - v) / noise / std::sqrt(2.0)) / 2 / kTargetPlaces;
      EXPECT_NEAR(share, target, 1e-3) << noise;
    }
    const float cut = CutOf(4, x, target);
    EXPECT_LT(cut, before);
    before = cut;
  }
  EXPECT_EQ(CutOf(0, x, .5f), x.back());  // without noise the last of them is the cut
}

TEST(RecallTarget, TheSpreadOfScoresIsTheirsLessTheNoise) {
  // 1, 2, 3, 4: mean 2.5, variance 1.25.
  const ScoreSpread s = SpreadOf(.5f, 10, 30, 4);
  EXPECT_EQ(s.mean, 2.5f);
  EXPECT_NEAR(s.shrink, std::sqrt(1 - .25 / 1.25), 1e-6);
  EXPECT_NEAR(TrueScore(s, 4), 2.5f + s.shrink * 1.5f, 1e-6);
  EXPECT_EQ(SpreadOf(2, 10, 30, 4).shrink, 0.0f);  // nothing but noise
  EXPECT_EQ(SpreadOf(2, 4, 4, 4).shrink, 1.0f);    // all the same
}

}  // namespace
}  // namespace seine
