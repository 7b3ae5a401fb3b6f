// The CPU's steps of Oja's rule.
#ifndef SEINE_KERNELS_OPS_LEARN_OJA_CPU_H_
#define SEINE_KERNELS_OPS_LEARN_OJA_CPU_H_

#include "kernels/ops/learn/oja.h"

namespace seine::cpu {

void Learn(const LearnTask& task);

}  // namespace seine::cpu

#endif  // SEINE_KERNELS_OPS_LEARN_OJA_CPU_H_
