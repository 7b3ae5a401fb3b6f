// The plain twins of scan.h.
#include "kernels/ops/scan/scan.h"

#include "kernels/math.h"
#include "kernels/ops/rows/rows.h"

namespace seine::cpu::scalar {
namespace {

// The same windows, one query and one key at a time: use(key, base, score).
template <typename Use>
void ScanOne(const ScanArgs& a, const ScanQuery& q, Use use) {
  const CodeLayout& layout = *a.layout;
  const PreparedQuery& query = *q.prepared;
  const float unit = query.coarse_step > 0 ? query.query8_step / query.coarse_step : 0.0f;
  for (int key = a.begin; key < a.end; key += kWindowTokens) {
    const uint8_t* coarse = a.planes.coarse + static_cast<size_t>(key) * layout.coarse_bytes;
    float base = q.shared_base;
    if (a.planes.centre != nullptr) {
      const int row = key / layout.centre_window;
      const int32_t dot =
          Dot8(a.planes.centre + static_cast<size_t>(row) * layout.head_dim, query.query8.data(), layout.head_dim);
      base = static_cast<float>(dot) * (a.planes.centre_scale[row] * unit);
    }
    int32_t sums[kWindowTokens];
    if (q.tiers) {
      SumTiers(coarse, layout.coarse_bytes, q.tiers, sums);
    } else {
      SumNibbles(coarse, layout.coarse_bytes, query.tables.data(), sums);
    }
    for (int i = 0; i < kWindowTokens; ++i) {
      const float sum = static_cast<float>(sums[i]);
      const float f = DecodeFactor(a.planes.factor[key + i], a.planes.factor_base[key / kWindowTokens]);
      use(key + i, base, q.tiers ? sum : base + f * sum);
    }
  }
}

}  // namespace

void ScanRow(const ScanArgs& a, float* const* scores, float* bases) {
  ScanArgs window = a;
  window.begin = a.begin / kWindowTokens * kWindowTokens;
  window.end = window.begin + kWindowTokens;
  for (int q = 0; q < a.count; ++q) {
    ScanOne(window, a.queries[q], [&](int key, float base, float score) {
      bases[q] = base;
      if (key >= a.begin && key < a.end) scores[q][key - a.begin] = score;
    });
  }
}

void ScanScores(const ScanArgs& a, float* const* scores, float* const* bases) {
  for (int q = 0; q < a.count; ++q) {
    ScanOne(a, a.queries[q], [&](int key, float base, float score) {
      scores[q][key - a.begin] = score;
      bases[q][(key - a.begin) / kWindowTokens] = base;
    });
  }
}

void ScanAbove(const ScanArgs& a, const float* thresholds, uint32_t first_index, Candidates* const* out) {
  for (int q = 0; q < a.count; ++q) {
    Candidates* const c = out[q];
    ScanOne(a, a.queries[q], [&](int key, float base, float score) {
      if (!(score >= thresholds[q])) return;
      c->index[c->size] = first_index + static_cast<uint32_t>(key);
      c->coarse[c->size] = score;
      c->base[c->size] = base;
      CopyCoarseRow(CoarseRowAt(a.planes.coarse, a.layout->coarse_bytes, key), a.layout->coarse_bytes,
                    c->rows.data() + c->size * a.layout->coarse_bytes);
      ++c->size;
    });
  }
}

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
