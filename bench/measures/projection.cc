#include "bench/measures/projection.h"

#include <algorithm>
#include <chrono>
#include <random>
#include <vector>

#include "index/subspace/basis.h"
#include "profile/spectrum.h"

namespace seine::bench {
namespace {

using Clock = std::chrono::steady_clock;
using RowMatrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

constexpr int kRows = 512;  // an update buffer
constexpr int kTurns = 20;
constexpr int kRunsATurn = 40;

template <typename Run>
double SecondsOf(Run run) {
  const auto begin = Clock::now();
  for (int i = 0; i < kRunsATurn; ++i) run();
  return std::chrono::duration<double>(Clock::now() - begin).count() / kRunsATurn;
}

}  // namespace

ProjectionRate MeasureProjection(int head_dim, int rank) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  RowMatrix rows(kRows, head_dim), product(kRows, rank);
  for (Eigen::Index i = 0; i < rows.size(); ++i) rows.data()[i] = normal(random);
  Eigen::MatrixXd square(head_dim, head_dim);
  for (Eigen::Index i = 0; i < square.size(); ++i) square.data()[i] = normal(random);
  const Eigen::MatrixXd q = OrthonormalOf(square);
  const Basis basis = FromEigen(q.leftCols(rank), 0);
  const RowMatrix u = q.leftCols(rank).cast<float>();
  std::vector<float> codes(static_cast<size_t>(kRows) * basis.stride());
  double project = 1e9, gemm = 1e9;
  for (int turn = 0; turn < kTurns; ++turn) {
    project = std::min(project, SecondsOf([&] { Project(basis, rows.data(), kRows, codes.data(), basis.stride()); }));
    gemm = std::min(gemm, SecondsOf([&] { product.noalias() = rows * u; }));
  }
  const double flops = 2.0 * kRows * head_dim * rank;
  return {flops / project / 1e9, flops / gemm / 1e9};
}

}  // namespace seine::bench
