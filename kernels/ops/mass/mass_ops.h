// Operations on each of a zone's sampled keys (kernels/ops/query/zone_mass.h), by the best instruction set; the same
// bits on every one.
#ifndef SEINE_KERNELS_OPS_MASS_MASS_OPS_H_
#define SEINE_KERNELS_OPS_MASS_MASS_OPS_H_

#include <cstdint>

#include "kernels/ops/query/zone_mass.h"

namespace seine::cpu {

// The sample of one query: MassSample's keys.
struct MassRows {
  const float* scores;   // [size] coarse scores E
  const float* factors;  // [size]
  const float* bases;    // [size >> shift]
  uint32_t size, shift;  // size: a multiple of kMassLanes
};

// e[i % 16] and squares[i % 16] become the sums of E - base and of its square.
void SumResiduals(const MassRows& rows, float* e, float* squares);
// out[i] = model.Exponent of key i.
void Exponents(const MassRows& rows, const MassModel& model, float* out);

}  // namespace seine::cpu

#endif  // SEINE_KERNELS_OPS_MASS_MASS_OPS_H_
