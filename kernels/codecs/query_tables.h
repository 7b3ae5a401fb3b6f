// The nibble tables of a prepared query, by the best instruction set (cpu/targets.h).
#ifndef SEINE_KERNELS_CODECS_QUERY_TABLES_H_
#define SEINE_KERNELS_CODECS_QUERY_TABLES_H_

#include <vector>

#include "kernels/codecs/code.h"

namespace seine::cpu {

// What a nibble's 16 values say of one coordinate.
struct NibblePart {
  int nibble, coordinate;
  const float* levels;  // [16]
};

// Table entry v of a nibble: the sum over its parts of weights[coordinate] * levels[v], in the parts' order, as 7-bit
// entries in steps that keep the largest sum within kTableMax. Sets out->tables and out->coarse_step. Parts ascend by
// nibble; nibbles without a part are 0.
void MakeNibbleTables(const std::vector<NibblePart>& parts, const float* weights, int nibbles, int coarse_bytes,
                      PreparedQuery* out);

// The plain twin, which every target equals bit for bit.
namespace scalar {
void MakeNibbleTables(const std::vector<NibblePart>& parts, const float* weights, int nibbles, int coarse_bytes,
                      PreparedQuery* out);
}  // namespace scalar

}  // namespace seine::cpu

#endif  // SEINE_KERNELS_CODECS_QUERY_TABLES_H_
