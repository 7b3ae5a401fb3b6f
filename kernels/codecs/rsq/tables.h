// What the rsq code computes with, on host and device.
#ifndef SEINE_KERNELS_CODECS_RSQ_TABLES_H_
#define SEINE_KERNELS_CODECS_RSQ_TABLES_H_

#include <cstdint>

#include "kernels/codecs/code.h"
#include "kernels/codecs/table.h"
#include "kernels/types.h"

namespace seine {

// The quantiser of rsq as kernels use it; levels8[t] = levels[t] * 127 / levels[7], rounded.
// The bin of |x_j| in a subvector of norm r counts the t with x_j^2 > thresholds2[t] * r^2: no root is taken.
struct RsqTables {
  float thresholds2[7];  // squares of tau
  float levels[8];
  uint8_t levels8[8];
};

// Views of a codec's tables (registry.h, CodecTables).
struct RsqViews {
  RsqTables magnitudes = {};
  Table<float> signs;  // of the rotation: [P], or [2P] where head_dim is no power of two (rows.h, Rotate)

  // visit(table) for every table, by reference: to copy them and set where they lie.
  template <typename Visit>
  void ForEachTable(Visit visit) {
    visit(signs);
  }
};

// Predicts rsq's errors; `norm` is the query's in units of coarse_step. A key's signs times its factor |x|^2 / |x|_1
// miss the key by a vector of square f^2 D - |x|^2, and |x|_1^2 = 2/pi D |x|^2 for a rotated key: by f sqrt(D (1 -
// 2/pi)), in a direction that a rotated query meets with |q| / sqrt(D). Four bits of a subvector's coordinate leave
// .0095 of its square.
SEINE_HD inline PredictedErrors RsqErrors(float norm) {
  constexpr float kSigns = 0.602810275f, kFineLeft = 0.0095f, kFineSpread = 0.0777688f;  // sqrt(2/pi kFineLeft)
  return {kSigns * norm, 0.0f, 1.0f - kFineLeft, kFineSpread * norm};
}

}  // namespace seine

#endif  // SEINE_KERNELS_CODECS_RSQ_TABLES_H_
