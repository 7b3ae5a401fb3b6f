// How far the balanced code's estimates are off, coordinate by coordinate.
#ifndef SEINE_KERNELS_CODECS_BALANCED_ERRORS_H_
#define SEINE_KERNELS_CODECS_BALANCED_ERRORS_H_

#include <cstdint>
#include <vector>

#include "kernels/codecs/kinds/balanced.h"

namespace seine {

// Predicts the balanced code's errors: added^2, unseen^2 and fine_spread^2 of each coordinate's square weight lambda_i
// q'_i^2. With rho_i its distortion at its coarse bits and k the lambda-weighted mean of 1 - rho over the coded
// coordinates, a key's scale is k f: its coordinate is k f z where the code has f z^, and E[(k f z - f z^)^2] = f^2 ((k
// - (1 - rho_i))^2 + (1 - rho_i) rho_i); of a coordinate without coarse bits it is all of (k f)^2. The whole code
// leaves (k f)^2 rho_i at its own distortion; *fine_shrink: k of the whole code.
std::vector<ErrorShare> ErrorShares(const std::vector<float>& lambda, const std::vector<uint8_t>& coarse_bits,
                                    const std::vector<uint8_t>& total_bits, float* fine_shrink);

}  // namespace seine

#endif  // SEINE_KERNELS_CODECS_BALANCED_ERRORS_H_
