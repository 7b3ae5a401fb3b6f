// An orthonormal basis of one head's keys or values: what OjaKV stores rows in (OjaKV, sections 3.1 and A.3).
//
// A row x [D] is stored as its code y = x U [r] and read back as y U^T. Plain values, no locks.
#ifndef SEINE_INDEX_SUBSPACE_BASIS_H_
#define SEINE_INDEX_SUBSPACE_BASIS_H_

#include <Eigen/Core>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/host.h"
#include "kernels/types.h"

namespace seine {

struct Basis {
  int head_dim = 0, rank = 0;
  int64_t version = 0;   // counts the updates since it was calibrated
  std::vector<float> u;  // [head_dim, stride()], columns past `rank` are zero

  int stride() const { return host::PaddedColumns(rank); }
  host::MatrixView Matrix() const { return {u.data(), stride(), 1}; }      // U
  host::MatrixView Transposed() const { return {u.data(), 1, stride()}; }  // U^T
};

// The `rank` leading eigenvectors of a second moment [D, D] (A.3: for keys that of queries and keys stacked, or of keys
// alone). Signs are fixed by the largest entry, so equal moments give equal bases. INVALID_ARGUMENT: not square, a D
// that is no multiple of 16 or above 256, not symmetric, not finite, or a rank outside [1, D].
absl::StatusOr<Basis> BasisOfMoment(const Eigen::MatrixXd& moment, int rank);
// The smallest rank whose leading eigenvalues hold `energy` of the trace (A.3); energy in (0, 1].
absl::StatusOr<int> RankForEnergy(const Eigen::MatrixXd& moment, double energy);
// Uncentred second moment of rows [count, D], in fp64.
Eigen::MatrixXd MomentOfRows(const ConstRows& rows, int64_t count, int head_dim);

// U as Eigen's matrix, for measures; and back.
Eigen::MatrixXd ToEigen(const Basis& basis);
Basis FromEigen(const Eigen::MatrixXd& u, int64_t version);

// codes [count, stride] = rows U, and rows [count, D] = codes U^T, both fp32. `codes_stride` at least stride(): the
// padding is written as zeros.
void Project(const Basis& basis, const float* rows, int64_t count, float* codes, int64_t codes_stride);
void Reconstruct(const Basis& basis, const float* codes, int64_t codes_stride, int64_t count, float* rows);

// max |U^T U - I|.
double OrthonormalityError(const Basis& basis);
// SO = Tr(U1^T U2 U2^T U1) / r in [0, 1], r the smaller rank (OjaKV, section 4).
double Overlap(const Basis& a, const Basis& b);
// The largest principal angle between two bases of equal rank, radians in [0, pi / 2].
double PrincipalAngle(const Basis& a, const Basis& b);
// Tr(U^T C U) / Tr C; the residual energy ratio (RER) is what it lacks to 1.
double CapturedEnergy(const Basis& basis, const Eigen::MatrixXd& moment);

}  // namespace seine

#endif  // SEINE_INDEX_SUBSPACE_BASIS_H_
