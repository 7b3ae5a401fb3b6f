// The CPU's steps of Oja's rule.
#ifndef SEINE_KERNELS_CPU_OJA_H_
#define SEINE_KERNELS_CPU_OJA_H_

#include "kernels/oja.h"

namespace seine::cpu {

void Learn(const LearnTask& task);

}  // namespace seine::cpu

#endif  // SEINE_KERNELS_CPU_OJA_H_
