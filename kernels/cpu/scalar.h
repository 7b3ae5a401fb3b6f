// The plain C++ twin of every operation in ops.h: what the vector code must equal bit for bit. SEINE_SIMD=SCALAR runs
// it.
#ifndef SEINE_KERNELS_CPU_SCALAR_H_
#define SEINE_KERNELS_CPU_SCALAR_H_

#include "kernels/cpu/ops.h"
#include "kernels/math.h"

namespace seine::cpu {

bool ScalarForced();  // true while the target is SCALAR

namespace scalar {

// Coordinate j of a row of any type.
inline float At(const void* row, DType dtype, int j) {
  if (dtype == DType::kFloat32) return static_cast<const float*>(row)[j];
  const uint16_t bits = static_cast<const uint16_t*>(row)[j];
  return dtype == DType::kFloat16 ? HalfToFloat(bits) : Bf16ToFloat(bits);
}

void ToFloat(const ConstRows& rows, int count, int dim, float* out);
int64_t FirstNonFinite(const ConstRows& rows, int64_t count, int dim);
void Rotate(float* rows, int count, int dim, const float* signs);
void EncodeRsqWindow(const float* x, int dim, const RsqTables& tables, int coarse_bytes, uint8_t* coarse, float* factor,
                     uint8_t* fine, uint32_t* fine_base);
void MeanRow(const float* rows, int count, int dim, float* out);
void SubtractRow(float* rows, int count, int dim, const float* centre);
// Raw sums of one window's 64 keys: nibble tables less the bias (sign_ip) or tier weights (collision).
void SumNibbles(const uint8_t* coarse, int coarse_bytes, const uint8_t* tables, int32_t* sums);
void SumTiers(const uint8_t* coarse, int coarse_bytes, const uint8_t* tiers, int32_t* sums);
int32_t Dot8(const int8_t* a, const int8_t* b, int n);
void RerankRsq(const uint8_t* const* coarse_rows, const uint8_t* const* records, const uint32_t* bases, int count,
               int dim, const RsqTables& tables, const int8_t* query8, float* out);
void MulRow(const float* x, const float* matrix, int dim, float* out);
void EncodeBalancedWindow(const float* x, const BalancedTables& tables, uint8_t* cells, float* coarse_factors,
                          float* fine_factors);
void PackBalancedWindow(const uint8_t* cells, const std::vector<BitPlace>& places, int num_bytes, uint32_t* words);
void RerankBalanced(const uint8_t* const* coarse_rows, const uint8_t* const* records, const uint32_t* bases, int count,
                    const BalancedReader& reader, const int8_t* fine8, float* out);
void DotRows(const ConstRows& rows, int64_t count, int dim, const float* queries, int group, float* out,
             int64_t stride);
void DotGather(const ChunkedRows& rows, const int32_t* positions, int count, const float* queries, int group,
               float* out);
void SumExp(const float* x, size_t n, float scale, float shift, float* lanes);
void ExpInPlace(float* x, size_t n, float shift, float* lanes);
void AddExp(const float* x, size_t n, float shift, float share, float* out);

void Range(const float* scores, size_t n, float* smallest, float* largest);
size_t CountAbove(const float* scores, size_t n, float value);
void GatherBetween(const float* scores, size_t n, float low, float high, float* out);
size_t PlacesAbove(const float* scores, size_t n, const Cut& cut, uint32_t* out);

}  // namespace scalar
}  // namespace seine::cpu

#endif  // SEINE_KERNELS_CPU_SCALAR_H_
