// How far rsq's estimates are off, predicted.
#ifndef SEINE_KERNELS_CODECS_RSQ_ERRORS_H_
#define SEINE_KERNELS_CODECS_RSQ_ERRORS_H_

#include "kernels/codecs/code.h"
#include "kernels/types.h"

namespace seine {

// Predicts rsq's errors; `norm` is the query's in units of coarse_step. A key's signs times its factor |x|^2 / |x|_1
// miss the key by a vector of square f^2 D - |x|^2, and |x|_1^2 = 2/pi D |x|^2 for a rotated key: by f sqrt(D (1 -
// 2/pi)), in a direction that a rotated query meets with |q| / sqrt(D). Four bits of a subvector's coordinate leave
// .0095 of its square.
SEINE_HD inline PredictedErrors RsqErrors(float norm) {
  constexpr float kSigns = 0.602810275f, kFineLeft = 0.0095f, kFineSpread = 0.0777688f;  // sqrt(2/pi kFineLeft)
  return {kSigns * norm, 0.0f, 1.0f - kFineLeft, kFineSpread * norm};
}

}  // namespace seine

#endif  // SEINE_KERNELS_CODECS_RSQ_ERRORS_H_
