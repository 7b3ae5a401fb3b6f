// The generators draw what bench/inputs/synthetic.h says.
#include "bench/inputs/synthetic.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "bench/inputs/truth.h"

namespace seine::bench {
namespace {

constexpr int kMadeUpDim = 64;

SyntheticHead Make(SyntheticKind kind, int64_t num_keys, uint64_t seed = 1) {
  return MakeSynthetic({kind, num_keys, 256, kMadeUpDim, seed});
}

// Mean squared norm, and the share of it that the means of runs of `window` rows hold.
struct Moments {
  double norm2 = 0;
  double mean_share = 0;
};
Moments MomentsOf(const std::vector<float>& rows, int64_t window) {
  Moments m;
  const int64_t count = static_cast<int64_t>(rows.size()) / kMadeUpDim / window * window;
  for (int64_t begin = 0; begin < count; begin += window) {
    std::vector<double> sum(kMadeUpDim);
    for (int64_t i = begin * kMadeUpDim; i < (begin + window) * kMadeUpDim; ++i) {
      m.norm2 += static_cast<double>(rows[i]) * rows[i] / count;
      sum[i % kMadeUpDim] += rows[i];
    }
    for (double s : sum) m.mean_share += s * s / window / count;
  }
  m.mean_share /= m.norm2;
  return m;
}

TEST(SyntheticTest, GaussianIsWhite) {
  const SyntheticHead head = Make(SyntheticKind::kGaussian, 8192);
  for (const auto& rows : {head.keys, head.queries}) {
    EXPECT_NEAR(MomentsOf(rows, 64).norm2, kMadeUpDim, .05 * kMadeUpDim);
    EXPECT_NEAR(MomentsOf(rows, 64).mean_share, 1. / 64, .005);  // what 64 rows of pure noise average to
  }
  double fourth = 0;
  for (float v : head.keys) fourth += std::pow(v, 4) / head.keys.size();
  EXPECT_NEAR(fourth, 3, .1);
}

TEST(SyntheticTest, AnisotropicHasMeanAndSpectrum) {
  const SyntheticHead head = Make(SyntheticKind::kAnisotropic, 8192);
  EXPECT_NEAR(MomentsOf(head.keys, 8192).norm2, 4.7 * kMadeUpDim, .1 * kMadeUpDim);
  EXPECT_NEAR(MomentsOf(head.keys, 8192).mean_share, .8, .01);
  EXPECT_NEAR(MomentsOf(head.queries, 256).norm2, 3.4 * kMadeUpDim, .1 * kMadeUpDim);
  EXPECT_NEAR(MomentsOf(head.queries, 256).mean_share, .76, .02);
  // tr(C^2) / tr(C)^2 of the spectrum (i + .5)^-1.1, from pairs of rows: E<x, y>^2 / (E|x|^2)^2 for independent x, y.
  std::vector<float> mean(kMadeUpDim), x = head.keys;
  for (size_t i = 0; i < x.size(); ++i) mean[i % kMadeUpDim] += x[i] * kMadeUpDim / x.size();
  for (size_t i = 0; i < x.size(); ++i) x[i] -= mean[i % kMadeUpDim];
  double pairs = 0, norm2 = 0, sum = 0, sum2 = 0;
  for (int64_t r = 0; r < 4096; ++r) {
    pairs += std::pow(Dot(&x[r * kMadeUpDim], &x[(r + 4096) * kMadeUpDim], kMadeUpDim), 2) / 4096;
    norm2 += Dot(&x[r * kMadeUpDim], &x[r * kMadeUpDim], kMadeUpDim) / 4096;
  }
  for (int i = 0; i < kMadeUpDim; ++i) sum += std::pow(i + .5, -1.1), sum2 += std::pow(i + .5, -2.2);
  EXPECT_NEAR(pairs / (norm2 * norm2), sum2 / (sum * sum), .02);
}

// Rotation keeps norms; neighbours share what rotates slowly, tokens far apart do not.
TEST(SyntheticTest, RopeHasLocalMeansOnly) {
  const SyntheticHead head = Make(SyntheticKind::kRope, 65536);
  EXPECT_NEAR(MomentsOf(head.keys, 64).norm2, 4.7 * kMadeUpDim, .1 * kMadeUpDim);
  const double near = MomentsOf(head.keys, 64).mean_share, far = MomentsOf(head.keys, 65536).mean_share;
  EXPECT_GT(near, .5);
  EXPECT_LT(near, .8);
  EXPECT_LT(far, near - .15);
}

TEST(SyntheticTest, RopeTurnsEachPairByItsOwnAngle) {
  // Two heads that differ in nothing but position would show it directly; a mean does too: its slowest pair hardly
  // moves.
  const SyntheticHead head = Make(SyntheticKind::kRope, 4096);
  const int slowest = kMadeUpDim / 2 - 1;
  double x = 0, y = 0;
  for (int64_t r = 0; r < 4096; ++r) {
    x += head.keys[r * kMadeUpDim + slowest] / 4096;
    y += head.keys[r * kMadeUpDim + slowest + kMadeUpDim / 2] / 4096;
  }
  EXPECT_GT(x * x + y * y, 1.0);  // not averaged away
}

TEST(SyntheticTest, DriftTurnsTheMeanHalfway) {
  const SyntheticHead head = Make(SyntheticKind::kDrift, 16384);
  std::vector<float> first(kMadeUpDim), last(kMadeUpDim);
  for (int64_t r = 0; r < 512; ++r) {
    for (int i = 0; i < kMadeUpDim; ++i) {
      first[i] += head.keys[r * kMadeUpDim + i];
      last[i] += head.keys[(16384 - 512 + r) * kMadeUpDim + i];
    }
  }
  const float cosine =
      Dot(first.data(), last.data(), kMadeUpDim) /
      std::sqrt(Dot(first.data(), first.data(), kMadeUpDim) * Dot(last.data(), last.data(), kMadeUpDim));
  EXPECT_LT(cosine, -.95);
}

TEST(SyntheticTest, SameSeedSameBitsAndPrefix) {
  for (SyntheticKind kind : {SyntheticKind::kGaussian, SyntheticKind::kAnisotropic, SyntheticKind::kRope}) {
    const SyntheticHead a = Make(kind, 9000), b = Make(kind, 5000), c = Make(kind, 9000, 2);
    EXPECT_EQ(std::vector<float>(a.keys.begin(), a.keys.begin() + 5000 * kMadeUpDim), b.keys);
    EXPECT_EQ(a.keys, Make(kind, 9000).keys);
    EXPECT_NE(a.keys, c.keys);
  }
}

TEST(SyntheticTest, UnknownKindIsNamed) {
  const auto kind = SyntheticKindOf("uniform");
  EXPECT_EQ(kind.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(kind.status().message(), "--synthetic: \"uniform\" is none of gaussian, anisotropic, rope, drift");
}

}  // namespace
}  // namespace seine::bench
