// The plain C++ twin of hash_rows.h.
#include "kernels/ops/hash/hash_rows.h"
#include "kernels/ops/hash/hash_words.h"

namespace seine::cpu::scalar {

void HashRows(const ConstRows& rows, const int32_t* places, int count, int dim, uint32_t* out) {
  const size_t bytes = BytesOf(rows.dtype, dim), words = bytes / 8;
  for (int i = 0; i < count; ++i) {
    const auto* row = static_cast<const uint8_t*>(rows.row(places == nullptr ? i : places[i]));
    uint64_t sum = 0;
    for (size_t w = 0; w < words; ++w) sum += HashOfWord(row + w * 8, w);
    if (bytes % 8 != 0) sum += HashOfWord(row + bytes - 8, words);
    out[i] = MixHash(sum);
  }
}

}  // namespace seine::cpu::scalar
