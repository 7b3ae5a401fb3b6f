// Calibration, projection and the measures between bases.
#include "index/subspace/basis.h"

#include <algorithm>
#include <cmath>

#include "kernels/host.h"
#include "profile/field_error.h"
#include "profile/spectrum.h"

namespace seine {

namespace {

using Eigen::MatrixXd;

constexpr int64_t kBlock = 256;  // rows at a time: they and their codes stay in the second cache

absl::Status CheckMoment(const MatrixXd& moment) {
  const Eigen::Index dim = moment.rows();
  if (moment.cols() != dim || dim < 16 || dim > kMaxHeadDim || dim % 16 != 0) {
    return BadField("moment", dim, " x ", moment.cols(), " is not square of a multiple of 16 up to ", kMaxHeadDim);
  }
  if (!moment.allFinite()) return BadField("moment", "holds NaN or infinity");
  const double largest = moment.cwiseAbs().maxCoeff();
  if (largest == 0) return BadField("moment", "is all zeros");
  if ((moment - moment.transpose()).cwiseAbs().maxCoeff() > 1e-6 * largest) {
    return BadField("moment", "is not symmetric");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Basis> BasisOfMoment(const MatrixXd& moment, int rank) {
  if (absl::Status s = CheckMoment(moment); !s.ok()) return s;
  const Eigen::Index dim = moment.rows();
  if (rank < 1 || rank > dim) {
    return BadField("rank", rank, " is not in [1, ", dim, "]");
  }
  MatrixXd u = Decompose(.5 * (moment + moment.transpose())).vectors.rowwise().reverse().leftCols(rank);
  for (Eigen::Index i = 0; i < rank; ++i) {
    Eigen::Index largest;
    u.col(i).cwiseAbs().maxCoeff(&largest);
    if (u(largest, i) < 0) u.col(i) = -u.col(i);
  }
  return FromEigen(u, 0);
}

absl::StatusOr<int> RankForEnergy(const MatrixXd& moment, double energy) {
  if (absl::Status s = CheckMoment(moment); !s.ok()) return s;
  if (!(energy > 0 && energy <= 1)) {
    return BadField("energy", energy, " is not in (0, 1]");
  }
  const Eigen::VectorXd values = EigenvaluesOf(.5 * (moment + moment.transpose())).cwiseMax(0);
  const double wanted = energy * values.sum();
  double sum = 0;
  int rank = 0;
  for (Eigen::Index i = values.size() - 1; i >= 0 && (rank == 0 || sum < wanted); --i, ++rank) sum += values(i);
  return rank;
}

MatrixXd MomentOfRows(const ConstRows& rows, int64_t count, int head_dim) {
  MatrixXd moment = MatrixXd::Zero(head_dim, head_dim);
  std::vector<float> block(kBlock * head_dim);
  for (int64_t i = 0; i < count; i += kBlock) {
    const int n = static_cast<int>(std::min(kBlock, count - i));
    host::ToFloat({rows.row(i), rows.stride_bytes, rows.dtype}, n, head_dim, block.data());
    const MatrixXd x = Eigen::Map<const Eigen::MatrixXf>(block.data(), head_dim, n).cast<double>();
    moment.noalias() += x * x.transpose();
  }
  return count > 0 ? MatrixXd(moment / static_cast<double>(count)) : moment;
}

MatrixXd ToEigen(const Basis& basis) {
  MatrixXd u(basis.head_dim, basis.rank);
  for (int i = 0; i < basis.head_dim; ++i) {
    for (int j = 0; j < basis.rank; ++j) u(i, j) = basis.u[static_cast<size_t>(i) * basis.stride() + j];
  }
  return u;
}

Basis FromEigen(const MatrixXd& u, int64_t version) {
  Basis basis;
  basis.head_dim = static_cast<int>(u.rows());
  basis.rank = static_cast<int>(u.cols());
  basis.version = version;
  basis.u.assign(static_cast<size_t>(basis.head_dim) * basis.stride(), 0.0f);
  for (int i = 0; i < basis.head_dim; ++i) {
    for (int j = 0; j < basis.rank; ++j) {
      basis.u[static_cast<size_t>(i) * basis.stride() + j] = static_cast<float>(u(i, j));
    }
  }
  return basis;
}

void Project(const Basis& basis, const float* rows, int64_t count, float* codes, int64_t codes_stride) {
  for (int64_t i = 0; i < count; i += kBlock) {
    const int n = static_cast<int>(std::min(kBlock, count - i));
    host::MatMul({rows + i * basis.head_dim, basis.head_dim, 1}, basis.u.data(), basis.stride(), n, basis.rank,
                 basis.head_dim, false, codes + i * codes_stride, codes_stride);
  }
}

void Reconstruct(const Basis& basis, const float* codes, int64_t codes_stride, int64_t count, float* rows) {
  std::vector<float> transposed(static_cast<size_t>(basis.rank) * basis.head_dim);
  for (int i = 0; i < basis.head_dim; ++i) {
    for (int j = 0; j < basis.rank; ++j) {
      transposed[static_cast<size_t>(j) * basis.head_dim + i] = basis.u[static_cast<size_t>(i) * basis.stride() + j];
    }
  }
  for (int64_t i = 0; i < count; i += kBlock) {
    const int n = static_cast<int>(std::min(kBlock, count - i));
    host::MatMul({codes + i * codes_stride, codes_stride, 1}, transposed.data(), basis.head_dim, n, basis.head_dim,
                 basis.rank, false, rows + i * basis.head_dim, basis.head_dim);
  }
}

double OrthonormalityError(const Basis& basis) {
  const MatrixXd u = ToEigen(basis);
  return (u.transpose() * u - MatrixXd::Identity(basis.rank, basis.rank)).cwiseAbs().maxCoeff();
}

double Overlap(const Basis& a, const Basis& b) {
  return (ToEigen(a).transpose() * ToEigen(b)).squaredNorm() / std::min(a.rank, b.rank);
}

double PrincipalAngle(const Basis& a, const Basis& b) {
  // By the sine, |(I - U1 U1^T) U2|: the cosine says nothing about small angles in fp32.
  const MatrixXd u = ToEigen(a), v = ToEigen(b);
  const MatrixXd outside = v - u * (u.transpose() * v);
  // Its largest singular value by the eigenvalues of its square: 1e-8 off at most, a tenth of what fp32 bases are off.
  const double squared = EigenvaluesOf(outside.transpose() * outside).maxCoeff();
  return std::asin(std::sqrt(std::clamp(squared, 0.0, 1.0)));
}

double CapturedEnergy(const Basis& basis, const MatrixXd& moment) {
  const MatrixXd u = ToEigen(basis);
  return (u.transpose() * moment * u).trace() / moment.trace();
}

}  // namespace seine
