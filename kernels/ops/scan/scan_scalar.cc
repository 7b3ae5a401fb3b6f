// The plain twins of scan.h.
#include "kernels/ops/scan/scan.h"

#include "kernels/math.h"

namespace seine::cpu::scalar {

void SumNibbles(const uint8_t* coarse, int coarse_bytes, const uint8_t* tables, int32_t* sums) {
  for (int i = 0; i < kWindowTokens; ++i) {
    const uint8_t* tile = coarse + (i / kTileTokens) * kTileTokens * coarse_bytes + (i % kTileTokens) * 4;
    int32_t sum = -2 * kTableBias * coarse_bytes;
    for (int b = 0; b < coarse_bytes; ++b) {
      const uint8_t byte = tile[(b / 4) * 64 + b % 4];
      const uint8_t* table = tables + (b / 4) * 128 + (b % 4) * 16;
      sum += table[byte & 15] + table[64 + (byte >> 4)];
    }
    sums[i] = sum;
  }
}

void SumTiers(const uint8_t* coarse, int coarse_bytes, const uint8_t* tiers, int32_t* sums) {
  for (int i = 0; i < kWindowTokens; ++i) {
    const uint8_t* tile = coarse + (i / kTileTokens) * kTileTokens * coarse_bytes + (i % kTileTokens) * 4;
    int32_t sum = 0;
    for (int b = 0; b < coarse_bytes; ++b) sum += tiers[b * 256 + tile[(b / 4) * 64 + b % 4]];
    sums[i] = sum;
  }
}

}  // namespace seine::cpu::scalar
