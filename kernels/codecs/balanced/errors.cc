#include "kernels/codecs/balanced/errors.h"

#include <cstddef>

#include "kernels/codecs/balanced/gaussian_quantiser.h"

namespace seine {
namespace {

double Distortion(int total, int bits) {
  return total > 0 ? static_cast<double>(GaussianQuantiserOf(total).distortion[bits]) : 1.0;
}

// Lambda-weighted mean of 1 - rho over the coordinates that have `bits`.
double Kept(const std::vector<float>& lambda, const std::vector<uint8_t>& bits, const std::vector<uint8_t>& total) {
  double coded = 0, kept = 0;
  for (size_t i = 0; i < lambda.size(); ++i) {
    if (bits[i] == 0) continue;
    coded += static_cast<double>(lambda[i]);
    kept += static_cast<double>(lambda[i]) * (1 - Distortion(total[i], bits[i]));
  }
  return coded > 0 ? kept / coded : 1;
}

}  // namespace

std::vector<ErrorShare> ErrorShares(const std::vector<float>& lambda, const std::vector<uint8_t>& coarse_bits,
                                    const std::vector<uint8_t>& total_bits, float* fine_shrink) {
  const double k = Kept(lambda, coarse_bits, total_bits);
  *fine_shrink = static_cast<float>(Kept(lambda, total_bits, total_bits));
  std::vector<ErrorShare> shares;
  for (size_t i = 0; i < lambda.size(); ++i) {
    const double rho = Distortion(total_bits[i], coarse_bits[i]), bias = k - (1 - rho);
    const double error = coarse_bits[i] > 0 ? bias * bias + (1 - rho) * rho : k * k;
    const double fine = k * k * Distortion(total_bits[i], total_bits[i]);
    ErrorShare& share = shares.emplace_back();
    (coarse_bits[i] > 0 ? share.added : share.unseen) = static_cast<float>(error);
    share.fine = static_cast<float>(fine);
  }
  return shares;
}

}  // namespace seine
