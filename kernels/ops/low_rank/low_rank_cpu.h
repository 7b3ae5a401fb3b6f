// The CPU's projection and reconstruction of low-rank rows.
#ifndef SEINE_KERNELS_OPS_LOW_RANK_LOW_RANK_CPU_H_
#define SEINE_KERNELS_OPS_LOW_RANK_LOW_RANK_CPU_H_

#include "kernels/ops/low_rank/low_rank.h"

namespace seine::cpu {

void Project(const ProjectTask& task);
// Out may be any memory.
void Rebuild(const RebuildTask& task);

// fp32 to a stored type and back, x[count]. Halves saturate.
void Narrow(const float* x, int64_t count, DType dtype, uint8_t* out);
void Widen(const uint8_t* x, int64_t count, DType dtype, float* out);

}  // namespace seine::cpu

#endif  // SEINE_KERNELS_OPS_LOW_RANK_LOW_RANK_CPU_H_
