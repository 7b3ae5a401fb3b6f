// The CPU's vector operations, dispatched at run time to the best instruction set (Highway). SEINE_SIMD forces one:
// SCALAR (plain C++ twin), SSE4, AVX2, AVX3, AVX3_DL (AVX-512 with VBMI and VNNI), NEON.
// Every operation gives the same bits on every target: sums run in a fixed order of 16 lanes and no multiply-add is
// fused.
#ifndef SEINE_KERNELS_CPU_OPS_H_
#define SEINE_KERNELS_CPU_OPS_H_

#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/codecs/code.h"
#include "kernels/codecs/codec_tables.h"
#include "kernels/math.h"
#include "kernels/ops/select/select.h"
#include "kernels/types.h"

namespace seine::cpu {

// Name of the target in use, and those that this machine can run (best first, "SCALAR" last).
std::string TargetName();
std::vector<std::string> SupportedTargets();
// Forces a target for the whole process (tests, benches). Empty: back to automatic. False if not supported here.
// Not thread-safe against running operations.
bool ForceTarget(const std::string& name);

// Rows to fp32, [count, dim]. dim a multiple of 16.
void ToFloat(const ConstRows& rows, int count, int dim, float* out);

// Index of the first row in [0, count) that holds a NaN or infinity, or whose squared norm overflows fp32; -1 if none.
int64_t FirstNonFinite(const ConstRows& rows, int64_t count, int dim);

// In place on [count, dim]: SRHT. With P the largest power of two <= dim: coordinates [0, P) are multiplied by
// signs[0..P) and transformed by the unnormalised Walsh-Hadamard matrix; if P < dim, [dim - P, dim) again with
// signs[P..2P). signs are +-1/sqrt(P), so each step is orthonormal; overlapping steps mix a dim that is no power of two
// without padding.
void Rotate(float* rows, int count, int dim, const float* signs);

// RSQ codes of 64 rotated, centred keys x [64, dim]: coarse tiles, factors (fp32, |x|^2 / |x|_1), fine records
// [3 bit planes of dim / 8 bytes][dim / 8 weights as minifloats above *fine_base].
void EncodeRsqWindow(const float* x, int dim, const RsqTables& tables, int coarse_bytes, uint8_t* coarse, float* factor,
                     uint8_t* fine, uint32_t* fine_base);

// Means over `count` rows [count, dim], rows added in order. out[dim]. And rows -= centre.
void MeanRow(const float* rows, int count, int dim, float* out);
void SubtractRow(float* rows, int count, int dim, const float* centre);

// Coarse scan of keys [begin, end) of one segment, both multiples of 64. Scores are in units of coarse_step:
//   sign_ip:   base(window) + factor * (sum of table entries - bias), base = <q, centre> / coarse_step
//   collision: sum of tier weights (tiers [coarse_bytes][256] given)
struct ScanArgs {
  ConstCodePlanes planes;
  const CodeLayout* layout = nullptr;
  const PreparedQuery* query = nullptr;
  const uint8_t* tiers = nullptr;
  float shared_base = 0;  // base where no centre is stored a window
  int begin = 0, end = 0;
  const ConstCodePlanes* next = nullptr;  // what is scanned after this from its first key on, to be fetched ahead
  int next_keys = 0;
  int pass = 0, passes = 1;  // which of the scans of these same keys, by several queries, one right after another
};
// Every score: scores[end - begin], bases[(end - begin) / 64].
void ScanScores(const ScanArgs& args, float* scores, float* bases);
// Scores at or above `threshold` only: appended to `out` with index first_index + key. Room for end - begin + 16 more
// must be there.
void ScanAbove(const ScanArgs& args, float threshold, uint32_t first_index, Candidates* out);

// The coarse bytes of one key, gathered from its tile. row[coarse_bytes].
inline void CopyCoarseRow(const uint8_t* coarse, int coarse_bytes, int key, uint8_t* row) {
  const uint8_t* tile =
      coarse + static_cast<size_t>(key / kTileTokens) * kTileTokens * coarse_bytes + key % kTileTokens * 4;
  const auto copy = [&](int bytes) {
    for (int g = 0; g < bytes; g += 4) memcpy(row + g, tile + g * 16, 4);
  };
  if (coarse_bytes == 16) return copy(16);  // the usual length without a loop
  copy(coarse_bytes);
}

// int8 dot product, exact. n a multiple of 16.
int32_t Dot8(const int8_t* a, const int8_t* b, int n);

// Fine sums of RSQ records: out[i] = sum_b w_b * sum_{j in b} sign_j level8[t_j] q8_j; the inner sum exact in int32,
// the outer in 16 lanes. coarse_rows[i] (sign bits), records[i] and bases[i] (of the window's weights) of candidate i.
void RerankRsq(const uint8_t* const* coarse_rows, const uint8_t* const* records, const uint32_t* bases, int count,
               int dim, const RsqTables& tables, const int8_t* query8, float* out);

// out[i] = sum_j x[j] * matrix[j][i], matrix [dim, dim] row-major, j in order. dim a multiple of 16.
void MulRow(const float* x, const float* matrix, int dim, float* out);

// The balanced code's encoder of one head. Products run in int32 on 16-bit fixed point, so they are exact and the same
// on every target: a row is scaled to norm 32,000, a column of the map to norm 65,000 (Cauchy-Schwarz keeps sums below
// 2^31).
struct BalancedTables {
  int dim = 0;
  std::vector<int16_t> map;            // [dim][dim / 2][2]: column i of key_map / sqrt(lambda), scaled
  std::vector<float> scale;            // [dim] true value of a product's unit, for a row of norm 32,000
  std::vector<float> lambda;           // [dim]
  std::vector<uint8_t> coarse, total;  // [dim] bits
};
// Codes of 64 centred keys x [64, dim]. cells [dim][64]: indices of total[i] bits (0 where total[i] is 0). Factors in
// true units: s * sum(lambda z^2) / sum(lambda z z^) over the coded coordinates, of the coarse and of the whole code; 0
// for a zero key.
void EncodeBalancedWindow(const float* x, const BalancedTables& tables, uint8_t* cells, float* coarse_factors,
                          float* fine_factors);

// Bits of one coordinate's index: `bits` of them from the index's bit `from` on, at bit `at` of the row or record.
struct BitPlace {
  int coordinate, from, bits, at;
};
// Packs 64 keys' cells [dim][64] into words [num_bytes rounded up to 4, / 4][64], 4 bytes of a key each. Places ascend
// and fill num_bytes; what they leave is 0.
void PackBalancedWindow(const uint8_t* cells, const std::vector<BitPlace>& places, int num_bytes, uint32_t* words);

// How the fine stage reads a key: an index is two fields of the bytes [coarse row | record], 64 at most. Coordinates in
// groups of 64; what lies past dim has total bits 0.
struct BalancedReader {
  int groups = 0;                          // ceil(dim / 64)
  int coarse_bytes = 0, record_bytes = 0;  // record: without its factor
  // [groups][64], a lane a coordinate: byte of row and record where a field begins; how many bits it lies above its
  // place in the index, from -5 to 7; the index's bits that it holds. Fields of the record ascend, and those of eight
  // coordinates together lie within eight bytes.
  std::vector<uint8_t> coarse_byte, coarse_mask, fine_byte, fine_mask;
  std::vector<int8_t> coarse_shift, fine_shift;
  std::vector<uint8_t> flip;  // [groups][64]: 2^(total-1) - 1, which is also where the levels of that width begin
  uint8_t levels[64];         // of magnitudes of 1 to 6 bits one after another, largest 127
  uint8_t raised[128];        // 128 + signed level of index i of b bits, at 2^b + i
};
// Fine sums: out[i] = DecodeFactor(record i's last byte, bases[i]) * sum_j z^_j * fine8[j] in units of the levels; the
// sum exact in int32.
void RerankBalanced(const uint8_t* const* coarse_rows, const uint8_t* const* records, const uint32_t* bases, int count,
                    const BalancedReader& reader, const int8_t* fine8, float* out);

// out[g * stride + i] = <query_g, row_i> in fp32, fixed order of sums; queries [group, dim]. A row is read and
// converted once for up to four queries.
void DotRows(const ConstRows& rows, int64_t count, int dim, const float* queries, int group, float* out,
             int64_t stride);
// The same for rows at `positions`; stride = count.
void DotGather(const ChunkedRows& rows, const int32_t* positions, int count, const float* queries, int group,
               float* out);

// lanes[i % 16] += e^(x[i] * scale - shift) for i < n; no exponent above 0.
void SumExp(const float* x, size_t n, float scale, float shift, float* lanes);
// x[i] becomes e^min(x[i] - shift, 0), and lanes[i % 16] += x[i], for i < n.
void ExpInPlace(float* x, size_t n, float shift, float* lanes);
// out[i] += share * e^min(x[i] - shift, 0) for i < n.
void AddExp(const float* x, size_t n, float shift, float share, float* out);

// counts[b][byte] += sign for keys [begin, end) of a coarse plane.
void CountCodes(const ConstCodePlanes& planes, const CodeLayout& layout, int begin, int end, int sign,
                uint32_t* counts);

// Smallest and largest of scores[n], n >= 1; how many exceed a value.
void Range(const float* scores, size_t n, float* smallest, float* largest);
size_t CountAbove(const float* scores, size_t n, float value);
// Scores in (low, high] to out, in order; out has room for 16 more, or is `scores` itself.
void GatherBetween(const float* scores, size_t n, float low, float high, float* out);
// Places of the scores that a cut keeps, ascending. Returns how many; out has room for 16 more.
size_t PlacesAbove(const float* scores, size_t n, const Cut& cut, uint32_t* out);

}  // namespace seine::cpu

#endif  // SEINE_KERNELS_CPU_OPS_H_
