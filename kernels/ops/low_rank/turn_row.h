// RoPE of rows that are rebuilt (rope.h), a vector of pairs at a time: TurnPair's bits on every target.
#ifndef SEINE_KERNELS_OPS_LOW_RANK_TURN_ROW_H_
#define SEINE_KERNELS_OPS_LOW_RANK_TURN_ROW_H_

#include <cstdint>

#include "kernels/ops/low_rank/rope.h"

namespace seine::cpu {

// Turns every pair of row [head_dim] to `position`. head_dim a multiple of 16.
void TurnRow(const RopeTurns& rope, int head_dim, int32_t position, float* row);

}  // namespace seine::cpu

#endif  // SEINE_KERNELS_OPS_LOW_RANK_TURN_ROW_H_
