// Attention over codes and over rebuilt rows, and the set that stays full-rank.
#include "index/subspace/low_rank.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "tests/index/subspace/streams.h"

namespace seine {
namespace {

using Eigen::MatrixXd;

constexpr int kRows = 200;

double FadingFromTwo(int i) { return std::pow(i + 1, -.7) * 2; }

TEST(LowRank, BothReadPathsGiveTheSameAttention) {
  for (int dim : {64, 80, 128}) {
    for (int rank : {1, 20, dim}) {
      const std::vector<float> keys = Stream(RandomAxes(dim, 1), kRows, 2, FadingFromTwo);
      const std::vector<float> values = Stream(RandomAxes(dim, 3), kRows, 4, FadingFromTwo);
      const std::vector<float> query = Stream(RandomAxes(dim, 5), 1, 6, FadingFromTwo);
      const Basis bk = BasisOfMoment(MomentOfRows(RowsOf(keys, dim), kRows, dim), rank).value();
      const Basis bv = BasisOfMoment(MomentOfRows(RowsOf(values, dim), kRows, dim), rank).value();
      std::vector<float> ck(kRows * bk.stride()), cv(ck.size()), rk(keys.size()), rv(keys.size());
      Project(bk, keys.data(), kRows, ck.data(), bk.stride());
      Project(bv, values.data(), kRows, cv.data(), bv.stride());
      Reconstruct(bk, ck.data(), bk.stride(), kRows, rk.data());
      Reconstruct(bv, cv.data(), bv.stride(), kRows, rv.data());
      const AttentionOutput rebuilt = FullAttention(RowsOf(rk, dim), RowsOf(rv, dim), kRows, dim, query.data());
      const AttentionOutput low = LowRankAttention(bk, ck.data(), bv, cv.data(), kRows, query.data());
      EXPECT_NEAR(low.log_sum_exp, rebuilt.log_sum_exp, 1e-5);
      for (int j = 0; j < dim; ++j) EXPECT_NEAR(low.output[j], rebuilt.output[j], 1e-5) << dim << " " << rank;
    }
  }
}

TEST(LowRank, FullAttentionIsTheDefinition) {
  constexpr int kDim = 64;
  const std::vector<float> keys = Stream(RandomAxes(kDim, 1), kRows, 2, FadingFromTwo);
  const std::vector<float> values = Stream(RandomAxes(kDim, 3), kRows, 4, FadingFromTwo);
  const std::vector<float> query = Stream(RandomAxes(kDim, 5), 1, 6, FadingFromTwo);
  const MatrixXd k = Eigen::Map<const Eigen::MatrixXf>(keys.data(), kDim, kRows).cast<double>();
  const MatrixXd v = Eigen::Map<const Eigen::MatrixXf>(values.data(), kDim, kRows).cast<double>();
  const Eigen::VectorXd q = Eigen::Map<const Eigen::VectorXf>(query.data(), kDim).cast<double>();
  const Eigen::VectorXd weights = (k.transpose() * q / std::sqrt(64.)).array().exp();
  const Eigen::VectorXd want = v * weights / weights.sum();
  const AttentionOutput got = FullAttention(RowsOf(keys, kDim), RowsOf(values, kDim), kRows, kDim, query.data());
  EXPECT_NEAR(got.log_sum_exp, std::log(weights.sum()), 1e-5);
  for (int j = 0; j < kDim; ++j) EXPECT_NEAR(got.output[j], want(j), 1e-5);
  const AttentionOutput none = FullAttention(RowsOf(keys, kDim), RowsOf(values, kDim), 0, kDim, query.data());
  EXPECT_EQ(none.log_sum_exp, -std::numeric_limits<double>::infinity());
}

TEST(LowRank, FullRankSetIsThatOfADirectComputation) {
  constexpr int kDim = 64, kQueries = 32, kKept = 20;
  const std::vector<float> keys = Stream(RandomAxes(kDim, 1), kRows, 2, FadingFromTwo);
  const std::vector<float> queries = Stream(RandomAxes(kDim, 5), kQueries, 6, FadingFromTwo);
  const Basis basis = BasisOfMoment(MomentOfRows(RowsOf(keys, kDim), kRows, kDim), 12).value();
  const MatrixXd u = ToEigen(basis);
  const MatrixXd k = Eigen::Map<const Eigen::MatrixXf>(keys.data(), kDim, kRows).cast<double>();
  const MatrixXd q = Eigen::Map<const Eigen::MatrixXf>(queries.data(), kDim, kQueries).cast<double>();
  const Eigen::MatrixXf residuals = (k - u * (u.transpose() * k)).cast<float>();
  // Positions 100, 101, ...; the queries of two heads at 290, 291, ..., so that the last tokens are seen by few.
  constexpr int kGroup = 2, kPositions = kQueries / kGroup, kFirstToken = 100, kFirstQuery = 290;
  std::vector<int32_t> tokens(kRows);
  std::vector<int64_t> asked(kPositions);
  std::iota(tokens.begin(), tokens.end(), kFirstToken);
  std::iota(asked.begin(), asked.end(), kFirstQuery);
  Eigen::VectorXd want = Eigen::VectorXd::Zero(kRows);
  for (int t = 0; t < kRows; ++t) {
    int seen = 0;
    for (int i = 0; i < kQueries; ++i) {
      if (asked[i / kGroup] < tokens[t]) continue;
      want(t) += std::fabs(q.col(i).dot(k.col(t) - u * (u.transpose() * k.col(t)))) / 8.0;
      ++seen;
    }
    if (seen > 0) want(t) /= seen;
  }
  const std::vector<float> errors = QueryWeightedErrors(
      residuals.data(), tokens.data(), kRows, kDim, {queries.data(), kGroup * kDim, kGroup, asked.data(), kPositions});
  for (int t = 0; t < kRows; ++t) EXPECT_NEAR(errors[t], want(t), 1e-5);
  const std::vector<float> exact(want.data(), want.data() + kRows);
  EXPECT_EQ(FullRankSet(errors, kKept), FullRankSet(exact, kKept));
  float smallest_kept = 1e9f;
  for (int32_t t : FullRankSet(errors, kKept)) smallest_kept = std::min(smallest_kept, errors[t]);
  int above = 0;
  for (float e : errors) above += e >= smallest_kept;
  EXPECT_EQ(above, kKept);
}

TEST(LowRank, TiesGoToTheLowestPlaceAndAnyCountIsTaken) {
  EXPECT_EQ(FullRankSet({1, 3, 3, 2, 3}, 2), (std::vector<int32_t>{1, 2}));
  EXPECT_EQ(FullRankSet({1, 3}, 9), (std::vector<int32_t>{0, 1}));
  EXPECT_TRUE(FullRankSet({1, 3}, 0).empty());
  EXPECT_TRUE(FullRankSet({}, 3).empty());
}

TEST(LowRank, PoolingTakesTheNeighboursThatExist) {
  EXPECT_EQ(PooledErrors({0, 6, 0, 3}, 1), (std::vector<float>{0, 6, 0, 3}));
  EXPECT_EQ(PooledErrors({0, 6, 0, 3}, 3), (std::vector<float>{3, 2, 3, 1.5}));
  EXPECT_TRUE(PooledErrors({}, 3).empty());
}

TEST(LowRank, ATokenThatNoQuerySeesHasNoError) {
  const std::vector<float> residuals(3 * 64, 1.0f), query(64, 1.0f);
  const int32_t positions[] = {4, 5, 6};
  const int64_t asked = 5;
  EXPECT_EQ(QueryWeightedErrors(residuals.data(), positions, 3, 64, {}), (std::vector<float>{0, 0, 0}));
  EXPECT_EQ(QueryWeightedErrors(residuals.data(), positions, 3, 64, {query.data(), 64, 1, &asked, 1}),
            (std::vector<float>{8, 8, 0}));
}

}  // namespace
}  // namespace seine
