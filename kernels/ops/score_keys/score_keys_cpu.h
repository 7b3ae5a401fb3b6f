// The memory-bound operations of eviction: one score a key against one anchor, and running sums of keys. Each key is
// read once, in its own type. Every operation gives the same bits on every target (cpu/targets.h).
#ifndef SEINE_KERNELS_OPS_SCORE_KEYS_SCORE_KEYS_CPU_H_
#define SEINE_KERNELS_OPS_SCORE_KEYS_SCORE_KEYS_CPU_H_

#include <cstdint>

#include "kernels/math.h"
#include "kernels/ops/score_keys/score_keys.h"

namespace seine::cpu {

// out[i] for rows [0, count) of `dim`, a multiple of 16. anchor[dim]; not read by kNegNorm.
void ScoreKeys(const ConstRows& rows, int64_t count, int dim, KeyScore kind, const float* anchor, float* out);
// The same of a task.
void ScoreKeys(const ScoreTask& task);

// |anchor|^2 as kUnitL2 takes it.
float AnchorSquares(const float* anchor, int dim);

// sums[dim] += rows [0, count), in order, in fp64; `unit` as in SumTask. Adding rows in several calls gives the same
// bits as adding them in one.
void AddKeys(const ConstRows& rows, int64_t count, int dim, bool unit, double* sums);

// The sums of a SumTask.
void SumKeys(const SumTask& task);
// One window's sum as its keys come: rows [0, count) after `before` others. sums[dim] of whole groups and open[dim] of
// the group that is not whole yet, both zeros at first: the window's sum is sums + open.
void AddToSums(const ConstRows& rows, int64_t count, int dim, bool unit, int64_t before, double* sums, double* open);
// Ends a group: sums[dim] += open, which becomes zeros. Of no rows this changes nothing.
void CloseGroup(int dim, double* open, double* sums);

namespace scalar {
void ScoreKeys(const ConstRows& rows, int64_t count, int dim, KeyScore kind, const float* anchor, float* out);
void AddKeys(const ConstRows& rows, int64_t count, int dim, bool unit, double* sums);
}  // namespace scalar

}  // namespace seine::cpu

#endif  // SEINE_KERNELS_OPS_SCORE_KEYS_SCORE_KEYS_CPU_H_
