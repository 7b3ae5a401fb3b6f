// The memory-bound operations of eviction: one score a key against one anchor, and running sums of keys. Each key is
// read once, in its own type. Every operation gives the same bits on every target (ops.h).
#ifndef SEINE_KERNELS_CPU_KEY_SCORES_H_
#define SEINE_KERNELS_CPU_KEY_SCORES_H_

#include <cstdint>

#include "kernels/math.h"
#include "kernels/types.h"

namespace seine::cpu {

// Score of a key k against an anchor a. Higher means keep. Finishing formulas and sources: math.h.
enum class KeyScore : uint8_t {
  kNegNorm,    // -|k|
  kDot,        // <k, a>
  kNegCosine,  // -<k, a> / |k|; 0 for a zero key. The caller gives a of norm 1, or of any norm where order alone counts
  kL2,         // |k - a|_2
  kL1,         // |k - a|_1
  kLinf,       // |k - a|_inf
  kUnitL2,     // |k / |k| - a|_2 by its squares; |a| for a zero key
};

// out[i] for rows [0, count) of `dim`, a multiple of 16. anchor[dim]; not read by kNegNorm. Scores are finite for keys
// whose squared norm is (an overflowing distance becomes the largest float).
void ScoreKeys(const ConstRows& rows, int64_t count, int dim, KeyScore kind, const float* anchor, float* out);

// sums[dim] += rows [0, count), in order, in fp64; `unit`: of rows divided by their norms (as k * (1 / |k|) in fp32; a
// zero row adds nothing). Adding rows in several calls gives the same bits as adding them in one.
void AddKeys(const ConstRows& rows, int64_t count, int dim, bool unit, double* sums);

namespace scalar {
void ScoreKeys(const ConstRows& rows, int64_t count, int dim, KeyScore kind, const float* anchor, float* out);
void AddKeys(const ConstRows& rows, int64_t count, int dim, bool unit, double* sums);
}  // namespace scalar

}  // namespace seine::cpu

#endif  // SEINE_KERNELS_CPU_KEY_SCORES_H_
