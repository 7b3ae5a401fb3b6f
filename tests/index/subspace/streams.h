// Synthetic streams of rows for the subspace tests.
#ifndef SEINE_TESTS_INDEX_SUBSPACE_STREAMS_H_
#define SEINE_TESTS_INDEX_SUBSPACE_STREAMS_H_

#include <Eigen/Dense>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "index/subspace/basis.h"
#include "kernels/types.h"

namespace seine {

// Rows [count, dim] with standard deviations `deviation(i)` along the columns of an orthonormal matrix.
template <typename Deviation>
std::vector<float> Stream(const Eigen::MatrixXd& axes, int64_t count, uint64_t seed, Deviation deviation) {
  std::mt19937_64 rng(seed);
  std::normal_distribution<double> normal;
  const Eigen::Index dim = axes.rows();
  std::vector<float> rows(count * dim);
  Eigen::VectorXd z(dim);
  for (int64_t t = 0; t < count; ++t) {
    for (Eigen::Index i = 0; i < dim; ++i) z(i) = normal(rng) * deviation(static_cast<int>(i));
    Eigen::Map<Eigen::VectorXf>(rows.data() + t * dim, dim) = (axes * z).cast<float>();
  }
  return rows;
}

inline Eigen::MatrixXd RandomAxes(int dim, uint64_t seed) {
  std::mt19937_64 rng(seed);
  std::normal_distribution<double> normal;
  Eigen::MatrixXd m(dim, dim);
  for (Eigen::Index i = 0; i < m.size(); ++i) m.data()[i] = normal(rng);
  return Eigen::HouseholderQR<Eigen::MatrixXd>(m).householderQ();
}

inline ConstRows RowsOf(const std::vector<float>& rows, int dim) {
  return {rows.data(), dim * sizeof(float), DType::kFloat32};
}

// Residual energy ratio of rows under a basis, in fp64.
inline double ResidualRatio(const Basis& basis, const std::vector<float>& rows) {
  const int dim = basis.head_dim;
  const Eigen::MatrixXd moment = MomentOfRows(RowsOf(rows, dim), static_cast<int64_t>(rows.size()) / dim, dim);
  return 1 - CapturedEnergy(basis, moment);
}

}  // namespace seine

#endif  // SEINE_TESTS_INDEX_SUBSPACE_STREAMS_H_
