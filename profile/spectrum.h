// Factors of matrices, compiled once: Eigen's solvers take a compiler longer than most files here.
#ifndef SEINE_PROFILE_SPECTRUM_H_
#define SEINE_PROFILE_SPECTRUM_H_

#include <Eigen/Core>

namespace seine {

// A symmetric matrix: vectors * diag(values) * vectors^T.
struct Spectrum {
  Eigen::MatrixXd vectors;  // columns, orthonormal; each one's sign is free
  Eigen::VectorXd values;   // ascending
};

// `symmetric`: square and finite; its lower triangle alone is read.
Spectrum Decompose(const Eigen::MatrixXd& symmetric);
// The values alone, ascending: a third of the time.
Eigen::VectorXd EigenvaluesOf(const Eigen::MatrixXd& symmetric);

// The first columns of Q in `columns` = Q R, by Householder's reflections: as many, orthonormal; each one's sign is
// free.
Eigen::MatrixXd OrthonormalOf(const Eigen::MatrixXd& columns);

}  // namespace seine

#endif  // SEINE_PROFILE_SPECTRUM_H_
