// The plain twins of rsq/ops.h.
#include "kernels/codecs/rsq/ops.h"

#include <cmath>
#include <cstring>

#include "kernels/codecs/kinds/rsq.h"
#include "kernels/cpu/scalar.h"
#include "kernels/math.h"

namespace seine::cpu::scalar {

void EncodeRsqWindow(const float* x, int dim, const RsqTables& tables, int coarse_bytes, uint8_t* coarse, float* factor,
                     uint8_t* fine, uint32_t* fine_base) {
  const int subvectors = dim / 8, fine_bytes = dim / 2;
  memset(coarse, 0, static_cast<size_t>(kWindowTokens) * coarse_bytes);
  float weights[kWindowTokens][kMaxHeadDim / 8], largest = 0;
  for (int i = 0; i < kWindowTokens; ++i, x += dim) {
    uint8_t* record = fine + static_cast<size_t>(i) * fine_bytes;
    memset(record, 0, fine_bytes);
    float squares[16] = {0}, absolutes[16] = {0};
    for (int b = 0; b < subvectors; ++b) {
      float norm[8], alpha[8];
      for (int j = 0; j < 8; ++j) norm[j] = x[b * 8 + j] * x[b * 8 + j];
      for (int j = 0; j < 8; ++j) squares[(b * 8 + j) % 16] = squares[(b * 8 + j) % 16] + norm[j];
      const float r2 = Tree(norm, 8);
      uint8_t signs = 0;
      for (int j = 0; j < 8; ++j) {
        const float v = x[b * 8 + j], u = std::fabs(v);
        absolutes[(b * 8 + j) % 16] = absolutes[(b * 8 + j) % 16] + u;
        int t = 0;
        while (t < 7 && v * v > tables.thresholds2[t] * r2) ++t;
        signs |= static_cast<uint8_t>((v >= 0) << j);
        for (int plane = 0; plane < 3; ++plane)
          record[plane * subvectors + b] |= static_cast<uint8_t>(((t >> plane) & 1) << j);
        alpha[j] = tables.levels[t] * u;
      }
      coarse[(i / kTileTokens) * kTileTokens * coarse_bytes + (b / 4) * 64 + (i % kTileTokens) * 4 + b % 4] = signs;
      const float a = Tree(alpha, 8);
      weights[i][b] = a > 0 ? r2 / a : 0.0f;
      largest = weights[i][b] > largest ? weights[i][b] : largest;
    }
    const float l1 = Tree(absolutes, 16);
    factor[i] = l1 > 0 ? Tree(squares, 16) / l1 : 0.0f;
  }
  float smallest = largest;
  for (int i = 0; i < kWindowTokens; ++i) {
    for (int b = 0; b < subvectors; ++b) smallest = weights[i][b] < smallest ? weights[i][b] : smallest;
  }
  *fine_base = FactorBase(largest, smallest);
  for (int i = 0; i < kWindowTokens; ++i) {
    uint8_t* codes = fine + static_cast<size_t>(i) * fine_bytes + 3 * subvectors;
    for (int b = 0; b < subvectors; ++b) codes[b] = EncodeFactor(weights[i][b], *fine_base);
  }
}

void RerankRsq(const uint8_t* const* coarse_rows, const uint8_t* const* records, const uint32_t* bases, int count,
               int dim, const RsqTables& tables, const int8_t* query8, float* out) {
  const int subvectors = dim / 8;
  for (int i = 0; i < count; ++i) {
    float lanes[16] = {0};
    for (int b = 0; b < subvectors; ++b) {
      const uint8_t* planes = records[i] + b;
      int32_t sum = 0;
      for (int j = 0; j < 8; ++j) {
        const int t =
            ((planes[0] >> j) & 1) | ((planes[subvectors] >> j) & 1) << 1 | ((planes[2 * subvectors] >> j) & 1) << 2;
        const int32_t product = tables.levels8[t] * query8[b * 8 + j];
        sum += (coarse_rows[i][b] >> j) & 1 ? product : -product;
      }
      lanes[b % 16] = lanes[b % 16] + DecodeFactor(planes[3 * subvectors], bases[i]) * static_cast<float>(sum);
    }
    out[i] = Tree(lanes, 16);
  }
}

}  // namespace seine::cpu::scalar
