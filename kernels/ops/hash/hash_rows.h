// Hashes of stored rows, by which one is known again that has changed.
//
// Each word of 64 bits adds two things: itself with its halves exchanged, and the product of its halves under a key of
// the word's place. The sum is mixed once, and its lower half stays. That is how xxh3 takes in long texts. Its way for
// texts as short as a row takes three times as long.
#ifndef SEINE_KERNELS_OPS_HASH_HASH_ROWS_H_
#define SEINE_KERNELS_OPS_HASH_HASH_ROWS_H_

#include <cstdint>

#include "kernels/types.h"

namespace seine::cpu {

// out[i] = hash of row places[i] of `rows`, or of row i where places is nullptr. dim: elements a row, a multiple of 4
// of at most kMaxHeadDim. Every target gives the same bits, for this process alone: they are no format.
void HashRows(const ConstRows& rows, const int32_t* places, int count, int dim, uint32_t* out);

namespace scalar {
void HashRows(const ConstRows& rows, const int32_t* places, int count, int dim, uint32_t* out);
}  // namespace scalar

}  // namespace seine::cpu

#endif  // SEINE_KERNELS_OPS_HASH_HASH_ROWS_H_
