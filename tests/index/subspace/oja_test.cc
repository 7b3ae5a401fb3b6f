// Oja's rule: against its equation in fp64, on streams that stand still and that turn, and under hard input.
#include "index/subspace/oja.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "kernels/cpu/targets.h"
#include "tests/index/subspace/streams.h"

namespace seine {
namespace {

using Eigen::MatrixXd;

double PowerLaw(int i) { return std::pow(i + 1, -.6); }

Basis StartOf(int dim, int rank, uint64_t seed) { return FromEigen(RandomAxes(dim, seed).leftCols(rank), 0); }

MatrixXd Columns(const std::vector<float>& rows, int dim) {
  return Eigen::Map<const Eigen::MatrixXf>(rows.data(), dim, static_cast<Eigen::Index>(rows.size()) / dim)
      .cast<double>();
}

// The equation of section 5.2 with 1/n, then QR, in fp64.
Basis Reference(const Basis& start, const MatrixXd& x, double eta) {
  const MatrixXd u = ToEigen(start), c = x * x.transpose() / static_cast<double>(x.cols());
  const MatrixXd step = u + eta * (c * u - u * (u.transpose() * c * u));
  const MatrixXd q = Eigen::HouseholderQR<MatrixXd>(step).householderQ() * MatrixXd::Identity(u.rows(), u.cols());
  return FromEigen(q, 1);
}

TEST(Oja, StepIsTheEquationWithOneOverN) {
  for (int dim : {64, 80, 128}) {
    for (int rank : {1, 31, dim - 1}) {
      for (int interval : {1, 9, 32, 33, 256}) {
        for (double eta : {.01, .1, 1.5}) {  // the last is a large step
          const std::vector<float> rows = Stream(RandomAxes(dim, 1), interval, 2, [](int) { return 1; });
          OjaOptions options;
          options.interval = interval;
          options.learning_rate = eta;
          options.relative = false;
          const Basis start = StartOf(dim, rank, 3);
          OjaTracker tracker(start, options);
          ASSERT_TRUE(tracker.Add(RowsOf(rows, dim), interval).ok());
          const Basis want = Reference(start, Columns(rows, dim), eta);
          EXPECT_LT(PrincipalAngle(tracker.basis(), want), 1e-5 * (1 + 5 * eta))
              << dim << " " << rank << " " << interval << " " << eta;
          EXPECT_LT(OrthonormalityError(tracker.basis()), 1e-5);
          EXPECT_EQ(tracker.basis().version, 1);
          EXPECT_TRUE(eta > .01 || tracker.stats().large_steps == 0);
        }
      }
    }
  }
}

TEST(Oja, RelativeStepIsBoundedByTraceAndGain) {
  constexpr int kDim = 64, kRank = 20;
  const std::vector<float> flat = Stream(RandomAxes(kDim, 1), 32, 2, [](int) { return 3; });
  const std::vector<float> steep = Stream(RandomAxes(kDim, 1), 32, 2, [](int i) { return i == 0 ? 30 : .5; });
  OjaOptions options;
  options.learning_rate = .05;
  const Basis start = StartOf(kDim, kRank, 3);
  for (const bool gain_decides : {false, true}) {
    const std::vector<float>& rows = gain_decides ? steep : flat;
    const MatrixXd x = Columns(rows, kDim), u = ToEigen(start);
    const double by_trace = .05 * kDim / (x.squaredNorm() / 32);
    const double by_gain = .5 / (u.transpose() * x * x.transpose() * u / 32).norm();
    ASSERT_EQ(by_gain < by_trace, gain_decides);
    OjaTracker tracker(start, options);
    ASSERT_TRUE(tracker.Add(RowsOf(rows, kDim), 32).ok());
    EXPECT_LT(PrincipalAngle(tracker.basis(), Reference(start, x, std::min(by_trace, by_gain))), 1e-5);
  }
}

TEST(Oja, FindsThePrincipalSubspaceOfAStreamThatStandsStill) {
  constexpr int kDim = 64, kRank = 12;
  const MatrixXd axes = RandomAxes(kDim, 1);
  const auto deviation = [](int i) { return i < kRank ? 1.0 : .25; };
  const std::vector<float> rows = Stream(axes, 32768, 2, deviation);
  OjaTracker tracker(StartOf(kDim, kRank, 3), OjaOptions());
  ASSERT_TRUE(tracker.Add(RowsOf(rows, kDim), 32768).ok());
  const Basis pca = BasisOfMoment(MomentOfRows(RowsOf(rows, kDim), 32768, kDim), kRank).value();
  EXPECT_GE(Overlap(tracker.basis(), pca), .99);
  EXPECT_EQ(tracker.stats().updates, 1024);
  EXPECT_EQ(tracker.basis().version, 1024);
}

TEST(Oja, FollowsAStreamThatTurns) {
  constexpr int kDim = 64, kRank = 8;
  const MatrixXd axes = RandomAxes(kDim, 1);
  const auto deviation = [](int i) { return i < kRank ? 1.0 : .1; };
  const Basis start = FromEigen(axes.leftCols(kRank), 0);
  OjaTracker tracker(start, OjaOptions());
  MatrixXd turned = axes;
  std::vector<float> rows;
  for (int step = 0; step < 64; ++step) {  // a quarter turn of every axis of the subspace in all
    const double angle = (step + 1) / 64. * M_PI / 2;
    for (int i = 0; i < kRank; ++i) {
      turned.col(i) = std::cos(angle) * axes.col(i) + std::sin(angle) * axes.col(kRank + i);
      turned.col(kRank + i) = std::cos(angle) * axes.col(kRank + i) - std::sin(angle) * axes.col(i);
    }
    rows = Stream(turned, 128, 100 + step, deviation);
    ASSERT_TRUE(tracker.Add(RowsOf(rows, kDim), 128).ok());
  }
  EXPECT_LT(ResidualRatio(tracker.basis(), rows), .1);
  EXPECT_GT(ResidualRatio(start, rows), .9);
  EXPECT_GT(Overlap(tracker.basis(), FromEigen(turned.leftCols(kRank), 0)), .95);
}

// Four passes under AddressSanitizer, where updates take fifty times as long: the later ones touch no other memory.
#ifdef __SANITIZE_ADDRESS__
constexpr int64_t kManyUpdates = 2000;
#else
constexpr int64_t kManyUpdates = 100000;
#endif

TEST(Oja, StaysOrthonormalOverManyUpdates) {
  constexpr int kDim = 64, kRank = 38, kRows = 4096;
  const std::vector<float> rows = Stream(RandomAxes(kDim, 1), kRows, 2, PowerLaw);
  OjaOptions options;
  options.interval = 8;
  OjaTracker tracker(StartOf(kDim, kRank, 3), options);
  for (int pass = 0; tracker.stats().updates < kManyUpdates; ++pass) {
    ASSERT_TRUE(tracker.Add(RowsOf(rows, kDim), kRows).ok());
    ASSERT_LT(OrthonormalityError(tracker.basis()), 1e-5) << tracker.stats().updates;
  }
}

TEST(Oja, ErrorTriggeredUpdatesLessOften) {
  constexpr int kDim = 64, kRank = 16;
  const std::vector<float> rows = Stream(RandomAxes(kDim, 1), 8192, 2, PowerLaw);
  const auto run = [&](double threshold, int64_t spacing) {
    OjaOptions options;
    options.error_threshold = threshold;
    options.min_spacing = spacing;
    OjaTracker tracker(StartOf(kDim, kRank, 3), options);
    EXPECT_TRUE(tracker.Add(RowsOf(rows, kDim), 8192).ok());
    return tracker.stats();
  };
  const OjaStats always = run(0, 0), triggered = run(.3, 0), spaced = run(.3, 128), never = run(1, 0);
  EXPECT_EQ(always.updates, 256);
  EXPECT_GT(triggered.updates, 0);
  EXPECT_LT(triggered.updates, always.updates);
  EXPECT_LE(spaced.updates, 8192 / 128);
  EXPECT_GT(spaced.updates, 0);
  EXPECT_EQ(never.updates, 0);
  EXPECT_EQ(never.intervals, 256);
}

TEST(Oja, StatisticsAreThoseOfTheBasisThatTheRowsMet) {
  constexpr int kDim = 64;
  const std::vector<float> rows = Stream(RandomAxes(kDim, 1), 32, 2, PowerLaw);
  const Basis start = StartOf(kDim, 16, 3);
  OjaTracker tracker(start, OjaOptions());
  ASSERT_TRUE(tracker.Add(RowsOf(rows, kDim), 31).ok());
  EXPECT_EQ(tracker.stats().rows, 0);  // an interval that is not whole
  ASSERT_TRUE(tracker.Add(RowsOf({rows.end() - kDim, rows.end()}, kDim), 1).ok());
  EXPECT_EQ(tracker.stats().rows, 32);
  EXPECT_NEAR(tracker.stats().last_ratio, ResidualRatio(start, rows), 1e-5);
}

TEST(Oja, BatchStepIsTheEquationOnPooledRows) {
  constexpr int kDim = 64, kPool = 4;
  const std::vector<float> rows = Stream(RandomAxes(kDim, 1), 402, 2, PowerLaw);
  const MatrixXd x = Columns(rows, kDim);
  MatrixXd pooled(kDim, 100);
  for (int i = 0; i < 100; ++i) pooled.col(i) = x.middleCols(i * kPool, kPool).rowwise().mean();
  OjaOptions options;
  options.relative = false;
  options.learning_rate = .1;
  const Basis start = StartOf(kDim, 16, 3);
  OjaTracker tracker(start, options);
  ASSERT_TRUE(tracker.AddBatch(RowsOf(rows, kDim), 402, kPool).ok());
  EXPECT_LT(PrincipalAngle(tracker.basis(), Reference(start, pooled, .1)), 1e-5);
  EXPECT_EQ(tracker.stats().updates, 1);
  ASSERT_TRUE(tracker.AddBatch(RowsOf(rows, kDim), 3, kPool).ok());  // too few to pool
  EXPECT_EQ(tracker.stats().updates, 1);
  EXPECT_FALSE(tracker.AddBatch(RowsOf(rows, kDim), 3, 0).ok());
}

TEST(Oja, HardInput) {
  constexpr int kDim = 64;
  const std::vector<float> zeros(kDim * 32), ones(kDim * 32, 1.0f);
  const Basis start = StartOf(kDim, 8, 3);
  OjaTracker tracker(start, OjaOptions());
  ASSERT_TRUE(tracker.Add(RowsOf(ones, kDim), 0).ok());  // nothing
  ASSERT_TRUE(tracker.Add(RowsOf(zeros, kDim), 32).ok());
  EXPECT_EQ(tracker.stats().updates, 0);  // zeros say nothing
  EXPECT_EQ(tracker.basis().u, start.u);
  for (int i = 0; i < 200; ++i) ASSERT_TRUE(tracker.Add(RowsOf(ones, kDim), 32).ok());
  EXPECT_LT(ResidualRatio(tracker.basis(), ones), 1e-6);  // constant keys are learnt
  EXPECT_LT(OrthonormalityError(tracker.basis()), 1e-5);

  OjaTracker whole(StartOf(kDim, kDim, 3), OjaOptions());  // rank D: nothing is left over
  const std::vector<float> rows = Stream(RandomAxes(kDim, 1), 320, 2, PowerLaw);
  ASSERT_TRUE(whole.Add(RowsOf(rows, kDim), 320).ok());
  EXPECT_LT(whole.stats().residual_energy / whole.stats().energy, 1e-10);
  EXPECT_LT(OrthonormalityError(whole.basis()), 1e-5);
}

TEST(Oja, RefusesWhatIsNotFiniteAndTakesNothing) {
  constexpr int kDim = 64;
  std::vector<float> rows = Stream(RandomAxes(kDim, 1), 64, 2, PowerLaw);
  rows[40 * kDim + 7] = std::numeric_limits<float>::quiet_NaN();
  const Basis start = StartOf(kDim, 8, 3);
  OjaTracker tracker(start, OjaOptions());
  const absl::Status status = tracker.Add(RowsOf(rows, kDim), 64);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("row 40"), std::string::npos);
  EXPECT_EQ(tracker.stats().rows, 0);
  EXPECT_EQ(tracker.basis().u, start.u);
  EXPECT_FALSE(tracker.AddBatch(RowsOf(rows, kDim), 64, 1).ok());
}

TEST(Oja, RefusesWrongOptions) {
  const auto with = [](auto set) {
    OjaOptions options;
    set(&options);
    return std::string(Validate(options).message());
  };
  EXPECT_EQ(with([](OjaOptions*) {}), "");
  EXPECT_EQ(with([](OjaOptions* o) { o->interval = 0; }).find("interval"), 0);
  EXPECT_EQ(with([](OjaOptions* o) { o->interval = 256; }), "");
  EXPECT_EQ(with([](OjaOptions* o) { o->interval = 257; }), "interval: 257 is not in [1, 256]");
  EXPECT_EQ(with([](OjaOptions* o) { o->learning_rate = std::nan(""); }).find("learning_rate: nan"), 0);
  EXPECT_EQ(with([](OjaOptions* o) { o->learning_rate = 0; }).find("learning_rate"), 0);
  EXPECT_EQ(with([](OjaOptions* o) { o->max_gain = -1; }).find("max_gain"), 0);
  EXPECT_EQ(with([](OjaOptions* o) { o->error_threshold = 2; }).find("error_threshold"), 0);
  EXPECT_EQ(with([](OjaOptions* o) { o->min_spacing = -1; }).find("min_spacing"), 0);
}

TEST(Oja, SameBitsOnEveryTargetAndInAnyPieces) {
  constexpr int kDim = 80, kRows = 1000;
  const std::vector<float> rows = Stream(RandomAxes(kDim, 1), kRows, 2, PowerLaw);
  std::vector<float> want;
  for (const std::string& target : cpu::SupportedTargets()) {
    ASSERT_TRUE(cpu::ForceTarget(target));
    for (int piece : {kRows, 1, 37}) {
      OjaTracker tracker(StartOf(kDim, 33, 3), OjaOptions());
      for (int i = 0; i < kRows; i += piece) {
        ASSERT_TRUE(tracker.Add({rows.data() + i * kDim, kDim * 4, DType::kFloat32}, std::min(piece, kRows - i)).ok());
      }
      if (want.empty()) want = tracker.basis().u;
      EXPECT_EQ(tracker.stats().large_steps, 0);
      ASSERT_EQ(tracker.basis().u, want) << target << " in pieces of " << piece;
    }
  }
  cpu::ForceTarget("");
}

}  // namespace
}  // namespace seine
