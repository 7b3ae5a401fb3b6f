// Factors of matrices.
#include "profile/spectrum.h"

#include <Eigen/Eigenvalues>
#include <Eigen/QR>

namespace seine {

Spectrum Decompose(const Eigen::MatrixXd& symmetric) {
  const Eigen::SelfAdjointEigenSolver<Eigen::MatrixXd> solver(symmetric);
  return {solver.eigenvectors(), solver.eigenvalues()};
}

Eigen::VectorXd EigenvaluesOf(const Eigen::MatrixXd& symmetric) {
  return Eigen::SelfAdjointEigenSolver<Eigen::MatrixXd>(symmetric, Eigen::EigenvaluesOnly).eigenvalues();
}

Eigen::MatrixXd OrthonormalOf(const Eigen::MatrixXd& columns) {
  const Eigen::HouseholderQR<Eigen::MatrixXd> qr(columns);
  return qr.householderQ() * Eigen::MatrixXd::Identity(columns.rows(), columns.cols());
}

}  // namespace seine
