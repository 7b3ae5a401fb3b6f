// The order in which the fine stage reads a balanced code's coordinates.
#ifndef SEINE_KERNELS_CODECS_BALANCED_FINE_STEPS_H_
#define SEINE_KERNELS_CODECS_BALANCED_FINE_STEPS_H_

#include <cstdint>
#include <vector>

#include "kernels/codecs/kinds/balanced.h"

namespace seine {

// Coordinates in the order of their words in the record: first those with coarse bits, then those without.
// mixed_from[w] to mixed_from[w + 1] are those of the first kind that begin in word w; likewise plain_from.
struct FineSteps {
  std::vector<FineStep> steps;
  std::vector<CoarseStep> coarse;                // of the first kind
  std::vector<uint16_t> mixed_from, plain_from;  // [kRecordWords + 1]
};
FineSteps MakeFineSteps(const std::vector<BalancedCell>& cells);

}  // namespace seine

#endif  // SEINE_KERNELS_CODECS_BALANCED_FINE_STEPS_H_
