// Plain C++ twins. Sums of floats run in 16 lanes and one tree, as everywhere (simd-inl.h).
#include "kernels/cpu/scalar.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "kernels/codecs/balanced/gaussian_quantiser.h"
#include "kernels/math.h"

namespace seine::cpu::scalar {
namespace {

float Tree(float* lanes, int n) {
  for (int h = n / 2; h >= 1; h /= 2) {
    for (int i = 0; i < h; ++i) lanes[i] = lanes[i] + lanes[i + h];
  }
  return lanes[0];
}

float Dot(const void* row, DType dtype, int dim, const float* query) {
  float lanes[16] = {0};
  for (int j = 0; j < dim; ++j) lanes[j % 16] = lanes[j % 16] + At(row, dtype, j) * query[j];
  return Tree(lanes, 16);
}

}  // namespace

void ToFloat(const ConstRows& rows, int count, int dim, float* out) {
  for (int i = 0; i < count; ++i) {
    for (int j = 0; j < dim; ++j) out[static_cast<size_t>(i) * dim + j] = At(rows.row(i), rows.dtype, j);
  }
}

int64_t FirstNonFinite(const ConstRows& rows, int64_t count, int dim) {
  for (int64_t i = 0; i < count; ++i) {
    float lanes[16] = {0};
    for (int j = 0; j < dim; ++j) {
      const float x = At(rows.row(i), rows.dtype, j);
      lanes[j % 16] = lanes[j % 16] + x * x;
    }
    if (!std::isfinite(Tree(lanes, 16))) return i;
  }
  return -1;
}

void Rotate(float* rows, int count, int dim, const float* signs) {
  const int p = static_cast<int>(std::bit_floor(static_cast<unsigned>(dim)));
  const auto transform = [p](float* x, const float* s) {
    for (int i = 0; i < p; ++i) x[i] = x[i] * s[i];
    for (int h = 1; h < p; h *= 2) {
      for (int i = 0; i < p; i += 2 * h) {
        for (int j = i; j < i + h; ++j) {
          const float a = x[j], b = x[j + h];
          x[j] = a + b;
          x[j + h] = a - b;
        }
      }
    }
  };
  for (int i = 0; i < count; ++i) {
    float* x = rows + static_cast<size_t>(i) * dim;
    transform(x, signs);
    if (p < dim) transform(x + dim - p, signs + p);
  }
}

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
  *fine_base = FactorBase(largest);
  for (int i = 0; i < kWindowTokens; ++i) {
    uint8_t* codes = fine + static_cast<size_t>(i) * fine_bytes + 3 * subvectors;
    for (int b = 0; b < subvectors; ++b) codes[b] = EncodeFactor(weights[i][b], *fine_base);
  }
}

void MeanRow(const float* rows, int count, int dim, float* out) {
  const float share = 1.0f / static_cast<float>(count);
  for (int j = 0; j < dim; ++j) {
    float sum = rows[j];
    for (int i = 1; i < count; ++i) sum = sum + rows[static_cast<size_t>(i) * dim + j];
    out[j] = sum * share;
  }
}

void SubtractRow(float* rows, int count, int dim, const float* centre) {
  for (int i = 0; i < count; ++i) {
    for (int j = 0; j < dim; ++j) rows[static_cast<size_t>(i) * dim + j] -= centre[j];
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

int32_t Dot8(const int8_t* a, const int8_t* b, int n) {
  int32_t sum = 0;
  for (int i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
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

void MulRow(const float* x, const float* matrix, int dim, float* out) {
  std::fill_n(out, dim, 0.0f);
  for (int j = 0; j < dim; ++j) {
    for (int i = 0; i < dim; ++i) out[i] = out[i] + x[j] * matrix[static_cast<size_t>(j) * dim + i];
  }
}

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

void DotRows(const ConstRows& rows, int64_t count, int dim, const float* queries, int group, float* out,
             int64_t stride) {
  for (int g = 0; g < group; ++g) {
    const float* query = queries + static_cast<size_t>(g) * dim;
    for (int64_t i = 0; i < count; ++i) out[g * stride + i] = Dot(rows.row(i), rows.dtype, dim, query);
  }
}

void DotGather(const ChunkedRows& rows, const int32_t* positions, int count, const float* queries, int group,
               float* out) {
  for (int g = 0; g < group; ++g) {
    const float* query = queries + static_cast<size_t>(g) * rows.head_dim;
    for (int i = 0; i < count; ++i) *out++ = Dot(rows.row(positions[i]), rows.dtype, rows.head_dim, query);
  }
}

void SumExp(const float* x, size_t n, float scale, float shift, float* lanes) {
  for (size_t i = 0; i < n; ++i) lanes[i % 16] = lanes[i % 16] + ExpNonPositive(x[i] * scale - shift);
}

void ExpInPlace(float* x, size_t n, float shift, float* lanes) {
  for (size_t i = 0; i < n; ++i) {
    x[i] = ExpNonPositive(std::min(x[i] - shift, 0.0f));
    lanes[i % 16] = lanes[i % 16] + x[i];
  }
}

void AddExp(const float* x, size_t n, float shift, float share, float* out) {
  for (size_t i = 0; i < n; ++i) out[i] = out[i] + ExpNonPositive(std::min(x[i] - shift, 0.0f)) * share;
}

void Range(const float* scores, size_t n, float* smallest, float* largest) {
  const auto [low, high] = std::minmax_element(scores, scores + n);
  *smallest = *low;
  *largest = *high;
}

size_t CountAbove(const float* scores, size_t n, float value) {
  return static_cast<size_t>(std::count_if(scores, scores + n, [&](float s) { return s > value; }));
}

void GatherBetween(const float* scores, size_t n, float low, float high, float* out) {
  for (size_t i = 0; i < n; ++i) {
    if (scores[i] > low && scores[i] <= high) *out++ = scores[i];
  }
}

size_t PlacesAbove(const float* scores, size_t n, const Cut& cut, uint32_t* out) {
  size_t size = 0, ties = cut.ties;
  for (size_t i = 0; i < n; ++i) {
    const bool tie = scores[i] == cut.value && ties > 0;
    if (scores[i] > cut.value || tie) out[size++] = static_cast<uint32_t>(i);
    ties -= tie;
  }
  return size;
}

}  // namespace seine::cpu::scalar
