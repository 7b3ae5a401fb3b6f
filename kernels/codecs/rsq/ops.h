// The rsq code's vector operations, by the best instruction set (cpu/targets.h).
#ifndef SEINE_KERNELS_CODECS_RSQ_OPS_H_
#define SEINE_KERNELS_CODECS_RSQ_OPS_H_

#include <cstdint>

#include "kernels/codecs/kinds/rsq.h"

namespace seine::cpu {

// RSQ codes of 64 rotated, centred keys x [64, dim]: coarse tiles, factors (fp32, |x|^2 / |x|_1), fine records
// [3 bit planes of dim / 8 bytes][dim / 8 weights as minifloats above *fine_base].
void EncodeRsqWindow(const float* x, int dim, const RsqTables& tables, int coarse_bytes, uint8_t* coarse, float* factor,
                     uint8_t* fine, uint32_t* fine_base);

// Fine sums of RSQ records: out[i] = sum_b w_b * sum_{j in b} sign_j level8[t_j] q8_j; the inner sum exact in int32,
// the outer in 16 lanes. coarse_rows[i] (sign bits), records[i] and bases[i] (of the window's weights) of candidate i.
void RerankRsq(const uint8_t* const* coarse_rows, const uint8_t* const* records, const uint32_t* bases, int count,
               int dim, const RsqTables& tables, const int8_t* query8, float* out);

// The plain twins, which every target equals bit for bit.
namespace scalar {

void EncodeRsqWindow(const float* x, int dim, const RsqTables& tables, int coarse_bytes, uint8_t* coarse, float* factor,
                     uint8_t* fine, uint32_t* fine_base);
void RerankRsq(const uint8_t* const* coarse_rows, const uint8_t* const* records, const uint32_t* bases, int count,
               int dim, const RsqTables& tables, const int8_t* query8, float* out);

}  // namespace scalar

}  // namespace seine::cpu

#endif  // SEINE_KERNELS_CODECS_RSQ_OPS_H_
