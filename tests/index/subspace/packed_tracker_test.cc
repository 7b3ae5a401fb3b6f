// Trackers at rest: what they take, what rounding does to a basis and to what it learns, and that nothing drifts.
#include "index/subspace/packed_tracker.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/cpu/targets.h"
#include "tests/index/subspace/streams.h"

namespace seine {
namespace {

using Eigen::MatrixXd;

Basis AxesOf(int dim, int rank, uint64_t seed) { return FromEigen(RandomAxes(dim, seed).leftCols(rank), 7); }

TEST(PackedTracker, KeepsTheSubspaceAndItsOrthonormality) {
  for (const int dim : {64, 80, 128, 256}) {
    for (const int rank : {1, 31, dim * 3 / 5, std::min(dim, 80)}) {
      // Axes that stand alone, beside a subspace across all of the others, as keys with one large dimension have it.
      MatrixXd mixed = MatrixXd::Identity(dim, dim);
      mixed.bottomRightCorner(dim - 9, dim - 9) = RandomAxes(dim - 9, 4);
      for (const Basis& start : {AxesOf(dim, rank, 3), FromEigen(mixed.leftCols(rank), 7)}) {
        const PackedTracker resting(OjaTracker(start, OjaOptions()));
        const Basis woken = resting.basis();
        EXPECT_LT(OrthonormalityError(woken), 1e-5) << dim << " " << rank;
        EXPECT_LT(PrincipalAngle(start, woken), 5e-3) << dim << " " << rank;
        EXPECT_EQ(woken.version, 7);
        for (int i = 0; i < dim; ++i) {
          for (int j = rank; j < woken.stride(); ++j) {
            ASSERT_EQ(woken.u[static_cast<size_t>(i) * woken.stride() + j], 0.0f);
          }
        }
      }
    }
  }
}

TEST(PackedTracker, AxesComeBackExactly) {
  const Basis axes = FromEigen(-MatrixXd::Identity(64, 38), 0);
  EXPECT_EQ(PackedTracker(OjaTracker(axes, OjaOptions())).basis().u, axes.u);
}

TEST(PackedTracker, TakesTwelveBitsAnEntry) {
  EXPECT_EQ(PackedTracker::Bytes(64, 38, 0), 38 * (64 * 12 / 8 + 4));
  EXPECT_EQ(PackedTracker::Bytes(80, 33, 5), 33 * (80 * 12 / 8 + 4) + 5 * 80 * 4);
}

TEST(PackedTracker, RowsThatWaitAndStatisticsComeBack) {
  constexpr int kDim = 64;
  const std::vector<float> rows = Stream(RandomAxes(kDim, 1), 50, 2, [](int) { return 1; });
  OjaTracker tracker(AxesOf(kDim, 20, 3), OjaOptions());
  ASSERT_TRUE(tracker.Add(RowsOf(rows, kDim), 50).ok());
  const PackedTracker resting(tracker);
  EXPECT_EQ(resting.waiting(), 18);
  const OjaTracker woken = resting.Wake();
  EXPECT_EQ(woken.rows(), tracker.rows());
  EXPECT_EQ(woken.stats().updates, 1);
  EXPECT_EQ(woken.stats().energy, tracker.stats().energy);
  EXPECT_EQ(woken.basis().version, 8);
}

TEST(PackedTracker, WhatDoesNotLearnDoesNotDrift) {
  constexpr int kDim = 64;
  const std::vector<float> rows = Stream(RandomAxes(kDim, 1), 64, 2, [](int) { return 1; });
  OjaOptions never;
  never.error_threshold = 1;
  PackedTracker resting(OjaTracker(AxesOf(kDim, 38, 3), never));
  const std::vector<float> before = resting.basis().u;
  for (int block = 0; block < 100; ++block) {
    OjaTracker woken = resting.Wake();
    ASSERT_TRUE(woken.Add(RowsOf(rows, kDim), 64).ok());
    resting.Rest(woken);
  }
  EXPECT_EQ(resting.stats().rows, 6400);
  EXPECT_EQ(resting.basis().u, before);
}

// Blocks as short as they may be, so that rounding comes as often as it can: the basis is as good as one that never
// rests, and stays orthonormal.
TEST(PackedTracker, LearnsAsOneThatNeverRests) {
  constexpr int kDim = 64, kBlock = 64;
  constexpr int64_t kRows = 16384;
  const struct {
    const char* name;
    int rank;
    double (*deviation)(int);
  } streams[] = {
      {"gap", 12, [](int i) { return i < 12 ? 1.0 : .25; }},
      {"power law", 38, [](int i) { return std::pow(i + 1, -.6); }},
      {"steep", 38, [](int i) { return std::pow(i + 1, -1.5); }},
      {"one large dimension", 20, [](int i) { return i == 0 ? 30.0 : std::pow(i, -.6); }},
  };
  for (const auto& s : streams) {
    const std::vector<float> rows = Stream(RandomAxes(kDim, 1), kRows, 2, s.deviation);
    const Basis pca = BasisOfMoment(MomentOfRows(RowsOf(rows, kDim), kRows, kDim), s.rank).value();
    OjaTracker awake(AxesOf(kDim, s.rank, 3), OjaOptions());
    PackedTracker resting(awake);
    ASSERT_TRUE(awake.Add(RowsOf(rows, kDim), kRows).ok());
    for (int64_t i = 0; i < kRows; i += kBlock) {
      OjaTracker woken = resting.Wake();
      ASSERT_TRUE(woken.Add({rows.data() + i * kDim, kDim * 4, DType::kFloat32}, kBlock).ok());
      resting.Rest(woken);
      if (i % 1024 == 0) {
        ASSERT_LT(OrthonormalityError(resting.basis()), 1e-5) << s.name << ", row " << i;
      }
    }
    const double never = ResidualRatio(awake.basis(), rows), rested = ResidualRatio(resting.basis(), rows);
    EXPECT_LT(rested, 1.01 * never) << s.name;
    EXPECT_NEAR(Overlap(resting.basis(), pca), Overlap(awake.basis(), pca), 2e-3) << s.name;
    EXPECT_EQ(resting.stats().updates, awake.stats().updates);
  }
}

TEST(PackedTracker, SameBitsOnEveryTarget) {
  const Basis start = AxesOf(80, 33, 5);
  std::vector<float> want;
  for (const std::string& target : cpu::SupportedTargets()) {
    ASSERT_TRUE(cpu::ForceTarget(target));
    const std::vector<float> got = PackedTracker(OjaTracker(start, OjaOptions())).basis().u;
    if (want.empty()) want = got;
    EXPECT_EQ(got, want) << target;
  }
  cpu::ForceTarget("");
}

}  // namespace
}  // namespace seine
