// The Lloyd-Max quantiser of a standard Gaussian coordinate, 1 to 6 bits, and its embedded form: a code's leading bits
// are a coarser code whose levels are the means of the cells that they merge (README.md, "The balanced code").
#ifndef SEINE_KERNELS_CODECS_BALANCED_GAUSSIAN_QUANTISER_H_
#define SEINE_KERNELS_CODECS_BALANCED_GAUSSIAN_QUANTISER_H_

#include <array>

#include "kernels/codecs/kinds/balanced.h"

namespace seine {

// A quantiser of |z|. The index of z is offset binary: for bits b and magnitude bin m it is 2^(b-1) + m if z >= 0, else
// 2^(b-1) - 1 - m.
struct GaussianQuantiser {
  int bits = 0;
  std::array<float, 31> thresholds{};  // [2^(bits-1) - 1] ascending; bin m = how many lie strictly below |z|
  std::array<float, 32> levels{};      // [2^(bits-1)] conditional means
  // Level of |z| where only the leading `kept` bits of an index are known: [kept][m >> (bits - kept)], kept in
  // [1, bits].
  std::array<std::array<float, 32>, kMaxGaussianBits + 1> merged{};
  // Mean squared error of a standard Gaussian coordinate by the leading `kept` bits; 1 where kept is 0.
  std::array<float, kMaxGaussianBits + 1> distortion{};
};

// bits in [1, 6]. Fixed point of Lloyd's conditions on the density, computed once, in double; thread-safe.
const GaussianQuantiser& GaussianQuantiserOf(int bits);

const GaussianTables& AllGaussianTables();

}  // namespace seine

#endif  // SEINE_KERNELS_CODECS_BALANCED_GAUSSIAN_QUANTISER_H_
