// The balanced code's vector operations, by the best instruction set (cpu/targets.h).
#ifndef SEINE_KERNELS_CODECS_BALANCED_OPS_H_
#define SEINE_KERNELS_CODECS_BALANCED_OPS_H_

#include <cstdint>
#include <vector>

#include "kernels/codecs/code.h"

namespace seine::cpu {

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

// How one coordinate's index is put together where a vector holds a byte of many keys (rerank_cpu.cc): of each part the
// byte's bits, moved right or left, that the mask keeps. Masks are of four keys.
struct BalancedPart {
  uint8_t byte = 0, shift = 0;
  uint32_t mask = 0;
};
struct BalancedStep {
  BalancedPart right[2], left[2];
  int quarters = 1;  // how many times 16 levels it has
};

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
  // What targets without a shift for each lane read instead: raised less 128, then that negated; and the coordinates
  // that have bits, in fours of a kind: of parts that move right, of others, of more than 16 levels. What fills up a
  // four has levels 0.
  int8_t signed_levels[256] = {};
  std::vector<BalancedStep> plain, split, wide;
  std::vector<uint16_t> step_coordinate;  // of all of these: which
  std::vector<uint8_t> step_levels;       // and where its levels begin
  // What joins row and record in one register of 64 bytes: where each sixteen bytes of the record are read, none beyond
  // its end, and from which byte of (row, those read) each byte comes.
  int record_at[4];
  uint8_t join[64];
};
// total [head_dim] bits; places as PackBalancedWindow takes them.
BalancedReader MakeReader(const CodeLayout& layout, const std::vector<uint8_t>& total,
                          const std::vector<BitPlace>& coarse, const std::vector<BitPlace>& fine);
// Fine sums: out[i] = DecodeFactor(record i's last byte, bases[i]) * sum_j z^_j * fine8[j] in units of the levels; the
// sum exact in int32.
void RerankBalanced(const uint8_t* const* coarse_rows, const uint8_t* const* records, const uint32_t* bases, int count,
                    const BalancedReader& reader, const int8_t* fine8, float* out);

// The plain twins, which every target equals bit for bit.
namespace scalar {

void EncodeBalancedWindow(const float* x, const BalancedTables& tables, uint8_t* cells, float* coarse_factors,
                          float* fine_factors);
void PackBalancedWindow(const uint8_t* cells, const std::vector<BitPlace>& places, int num_bytes, uint32_t* words);
void RerankBalanced(const uint8_t* const* coarse_rows, const uint8_t* const* records, const uint32_t* bases, int count,
                    const BalancedReader& reader, const int8_t* fine8, float* out);

}  // namespace scalar

}  // namespace seine::cpu

#endif  // SEINE_KERNELS_CODECS_BALANCED_OPS_H_
