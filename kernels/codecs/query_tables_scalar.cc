// The plain twin of query_tables.h.
#include "kernels/codecs/query_tables.h"

#include <cstddef>

#include "kernels/codecs/codec_util.h"
#include "kernels/math.h"

namespace seine::cpu::scalar {

void MakeNibbleTables(const std::vector<NibblePart>& parts, const float* weights, int nibbles, int coarse_bytes,
                      PreparedQuery* out) {
  float sums[kMaxNibbles * 16] = {0};
  for (const NibblePart& part : parts) {
    float* const nibble = sums + part.nibble * 16;
    for (int v = 0; v < 16; ++v) nibble[v] = nibble[v] + weights[part.coordinate] * part.levels[v];
  }
  const TableScale scale = TableScaleOf(Largest(sums, static_cast<size_t>(nibbles) * 16));
  out->coarse_step = scale.step;
  out->tables.assign(static_cast<size_t>(coarse_bytes) * 32, kTableBias);
  for (int i = 0; i < nibbles; ++i) {
    uint8_t* table = NibbleTable(out, i);
    for (int v = 0; v < 16; ++v) table[v] = TableEntry(sums[i * 16 + v], scale.inverse);
  }
}

}  // namespace seine::cpu::scalar
