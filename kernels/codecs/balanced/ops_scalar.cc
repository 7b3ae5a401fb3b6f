// The plain twins of balanced/ops.h.
#include "kernels/codecs/balanced/ops.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/codecs/balanced/gaussian_quantiser.h"
#include "kernels/cpu/scalar.h"
#include "kernels/math.h"

namespace seine::cpu::scalar {

void EncodeBalancedWindow(const float* x, const BalancedTables& t, uint8_t* cells, float* coarse_factors,
                          float* fine_factors) {
  const int dim = t.dim;
  std::vector<int16_t> row(dim);
  std::vector<float> a(dim);
  for (int k = 0; k < kWindowTokens; ++k, x += dim) {
    float lanes[16] = {0};
    for (int j = 0; j < dim; ++j) lanes[j % 16] = lanes[j % 16] + x[j] * x[j];
    const BalancedScale scale = ScaleOf(Tree(lanes, 16));
    for (int j = 0; j < dim; ++j) row[j] = static_cast<int16_t>(RoundAway(x[j] * scale.forth));
    float squares = 0;
    for (int i = 0; i < dim; ++i) {
      int32_t sum = 0;
      const int16_t* column = t.map.data() + static_cast<size_t>(i) * dim;
      for (int j = 0; j < dim; ++j) sum += row[j] * column[j];
      a[i] = static_cast<float>(sum) * t.scale[i];
      squares = squares + a[i] * a[i];
    }
    const float size = std::sqrt(squares * (1.0f / static_cast<float>(dim)));
    const float inverse = size > 0 ? 1.0f / size : 0.0f;
    float coarse_top = 0, coarse_sum = 0, fine_top = 0, fine_sum = 0;
    for (int i = 0; i < dim; ++i) {
      uint8_t& cell = cells[static_cast<size_t>(i) * kWindowTokens + k];
      cell = 0;
      const int total = t.total[i], kept = t.coarse[i];
      if (total == 0) continue;
      const GaussianQuantiser& q = GaussianQuantiserOf(total);
      const float z = a[i] * inverse, u = std::fabs(z);
      const int half = 1 << (total - 1);
      int bin = 0;
      while (bin < half - 1 && u > q.thresholds[bin]) ++bin;
      cell = static_cast<uint8_t>(z >= 0 ? half + bin : half - 1 - bin);
      const float weighted = u * t.lambda[i], top = weighted * u;
      fine_top = fine_top + top;
      fine_sum = fine_sum + weighted * q.levels[bin];
      if (kept == 0) continue;
      coarse_top = coarse_top + top;
      coarse_sum = coarse_sum + weighted * q.merged[kept][bin >> (total - kept)];
    }
    const float s = size * scale.back;
    coarse_factors[k] = coarse_sum > 0 ? s * (coarse_top / coarse_sum) : 0.0f;
    fine_factors[k] = fine_sum > 0 ? s * (fine_top / fine_sum) : 0.0f;
  }
}

void PackBalancedWindow(const uint8_t* cells, const std::vector<BitPlace>& places, int num_bytes, uint32_t* words) {
  std::fill_n(words, (num_bytes + 3) / 4 * kWindowTokens, 0u);
  for (const BitPlace& p : places) {
    for (int b = 0; b < p.bits; ++b) {
      for (int k = 0; k < kWindowTokens; ++k) {
        const uint32_t bit = cells[p.coordinate * kWindowTokens + k] >> (p.from + b) & 1u;
        words[(p.at + b) / 32 * kWindowTokens + k] |= bit << ((p.at + b) % 32);
      }
    }
  }
}

void RerankBalanced(const uint8_t* const* coarse_rows, const uint8_t* const* records, const uint32_t* bases, int count,
                    const BalancedReader& r, const int8_t* fine8, float* out) {
  for (int i = 0; i < count; ++i) {
    uint8_t bytes[65] = {0};  // one beyond, for the last field's second byte
    memcpy(bytes, coarse_rows[i], r.coarse_bytes);
    memcpy(bytes + r.coarse_bytes, records[i], r.record_bytes);
    int32_t sum = 0;
    for (int c = 0; c < r.groups * 64; ++c) {
      const int fine_at = r.fine_byte[c], fine = bytes[fine_at] | bytes[fine_at + 1] << 8;
      const int coarse = bytes[r.coarse_byte[c]] << 8;
      const int index =
          (coarse >> (8 + r.coarse_shift[c]) & r.coarse_mask[c]) | (fine >> r.fine_shift[c] & r.fine_mask[c]);
      const int flip = r.flip[c];
      const bool negative = index <= flip;
      const int product = r.levels[((index ^ (negative ? flip : 0)) & flip) + flip] * fine8[c];
      sum += negative ? -product : product;
    }
    out[i] = DecodeFactor(records[i][r.record_bytes], bases[i]) * static_cast<float>(sum);
  }
}

}  // namespace seine::cpu::scalar
