// Eigenvectors of a symmetric matrix.
#include "profile/spectrum.h"

#include <Eigen/Eigenvalues>

namespace seine {

Spectrum Decompose(const Eigen::MatrixXd& symmetric) {
  const Eigen::SelfAdjointEigenSolver<Eigen::MatrixXd> solver(symmetric);
  return {solver.eigenvectors(), solver.eigenvalues()};
}

Eigen::VectorXd EigenvaluesOf(const Eigen::MatrixXd& symmetric) {
  return Eigen::SelfAdjointEigenSolver<Eigen::MatrixXd>(symmetric, Eigen::EigenvaluesOnly).eigenvalues();
}

}  // namespace seine
