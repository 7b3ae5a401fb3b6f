// Calibration, projection and the measures between bases.
#include "index/subspace/basis.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numbers>
#include <vector>

#include "tests/index/subspace/streams.h"

namespace seine {
namespace {

using Eigen::MatrixXd;

MatrixXd MomentWith(const MatrixXd& axes, const std::vector<double>& values) {
  Eigen::VectorXd lambda = Eigen::VectorXd::Zero(axes.cols());
  for (size_t i = 0; i < values.size(); ++i) lambda(static_cast<Eigen::Index>(i)) = values[i];
  return axes * lambda.asDiagonal() * axes.transpose();
}

TEST(Basis, HoldsTheLeadingEigenvectors) {
  for (int dim : {16, 64, 80, 128}) {
    const MatrixXd axes = RandomAxes(dim, 1);
    const auto basis = BasisOfMoment(MomentWith(axes, {9, 5, 3, 1}), 3);
    ASSERT_TRUE(basis.ok()) << basis.status();
    EXPECT_NEAR(Overlap(*basis, FromEigen(axes.leftCols(3), 0)), 1, 1e-6);
    EXPECT_LT(OrthonormalityError(*basis), 1e-6);
    EXPECT_NEAR(CapturedEnergy(*basis, MomentWith(axes, {9, 5, 3, 1})), 17. / 18, 1e-6);
  }
}

TEST(Basis, RankFollowsFromTheEnergy) {
  const MatrixXd moment = MomentWith(RandomAxes(64, 2), {6, 3, 1});
  EXPECT_EQ(RankForEnergy(moment, .5).value(), 1);
  EXPECT_EQ(RankForEnergy(moment, .61).value(), 2);
  EXPECT_EQ(RankForEnergy(moment, .95).value(), 3);
  EXPECT_FALSE(RankForEnergy(moment, 0).ok());
  EXPECT_FALSE(RankForEnergy(moment, 1.1).ok());
}

TEST(Basis, RefusesWhatIsNoMoment) {
  const MatrixXd good = MatrixXd::Identity(64, 64);
  MatrixXd nan = good, askew = good;
  nan(3, 3) = std::numeric_limits<double>::quiet_NaN();
  askew(0, 1) = 1;
  const struct {
    MatrixXd moment;
    int rank;
    const char* field;
  } kCases[] = {{good, 0, "rank"},
                {good, 65, "rank"},
                {nan, 8, "moment"},
                {askew, 8, "moment"},
                {MatrixXd::Zero(64, 64), 8, "moment"},
                {MatrixXd::Identity(64, 32), 8, "moment"},
                {MatrixXd::Identity(24, 24), 8, "moment"},
                {MatrixXd::Identity(528, 528), 8, "moment"}};
  for (const auto& c : kCases) {
    const absl::Status status = BasisOfMoment(c.moment, c.rank).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(status.message().substr(0, std::string(c.field).size()), c.field);
  }
}

TEST(Basis, ProjectsAndReconstructs) {
  constexpr int kDim = 80;
  for (int rank : {1, 7, 16, 33, kDim}) {
    const std::vector<float> rows = Stream(RandomAxes(kDim, 3), 300, 4, [](int) { return 1; });
    const Basis basis = BasisOfMoment(MomentOfRows(RowsOf(rows, kDim), 300, kDim), rank).value();
    std::vector<float> codes(300 * basis.stride()), back(rows.size());
    Project(basis, rows.data(), 300, codes.data(), basis.stride());
    Reconstruct(basis, codes.data(), basis.stride(), 300, back.data());
    const MatrixXd u = ToEigen(basis);
    const MatrixXd x = Eigen::Map<const Eigen::MatrixXf>(rows.data(), kDim, 300).cast<double>();
    const MatrixXd want = u * (u.transpose() * x);
    const MatrixXd got = Eigen::Map<const Eigen::MatrixXf>(back.data(), kDim, 300).cast<double>();
    EXPECT_LT((got - want).cwiseAbs().maxCoeff(), 1e-5) << rank;
    EXPECT_EQ((got - x).cwiseAbs().maxCoeff() < 1e-5, rank == kDim);
    for (int64_t t = 0; t < 300; ++t) {
      for (int j = rank; j < basis.stride(); ++j) ASSERT_EQ(codes[t * basis.stride() + j], 0);
    }
  }
}

TEST(Basis, MeasuresAngleAndOverlap) {
  MatrixXd u = MatrixXd::Identity(64, 2), v = u;
  v.col(1) = std::cos(.3) * u.col(1) + std::sin(.3) * MatrixXd::Identity(64, 64).col(5);
  const Basis a = FromEigen(u, 0), b = FromEigen(v, 0);
  EXPECT_NEAR(PrincipalAngle(a, b), .3, 1e-6);
  EXPECT_NEAR(Overlap(a, b), (1 + std::cos(.3) * std::cos(.3)) / 2, 1e-6);
  EXPECT_NEAR(PrincipalAngle(a, a), 0, 1e-6);
  EXPECT_NEAR(PrincipalAngle(a, FromEigen(MatrixXd::Identity(64, 64).middleCols(8, 2), 0)), std::numbers::pi / 2, 1e-6);
}

TEST(Basis, MomentOfRowsIsUncentredAndOfAnyType) {
  const std::vector<float> rows = {1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4, 5, 6, 7};
  const MatrixXd moment = MomentOfRows(RowsOf(rows, 16), 1, 16);
  EXPECT_EQ(moment(0, 1), 2);
  EXPECT_EQ(moment(8, 8), 81);
  EXPECT_EQ(MomentOfRows(RowsOf(rows, 16), 0, 16), MatrixXd::Zero(16, 16));
}

}  // namespace
}  // namespace seine
