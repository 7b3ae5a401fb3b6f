// RSQ codes on a device: codecs/rsq/encode_cpu.cc with a lane for each subvector of a key.
#ifndef SEINE_KERNELS_CODECS_RSQ_ENCODE_CUDA_H_
#define SEINE_KERNELS_CODECS_RSQ_ENCODE_CUDA_H_

#include <cstdint>

#include "kernels/codecs/encode/encode_cuda.h"

namespace seine::cuda {

template <int kDim>
struct RsqShared {
  using Rows = WindowShared<kDim, kDim <= 256 ? kWindowTokens : kWindowTokens / 2>;
  Rows window;
  float weights[kWindowTokens * (kDim / 8)];
  float squares[kWindowTokens], absolutes[kWindowTokens];
};

// rows.h, Rotate, of coordinates [begin, begin + size) of the rows in s.x.
template <typename Block, typename Rows>
SEINE_BODY void RotateRows(Block& block, Rows& s, int begin, int size, const float* signs) {
  ForEach(block, s.kRows * size, [&](int i) {
    float& x = s.x[i / size * s.kStride + begin + i % size];
    x = x * signs[i % size];
  });
  for (int h = 1; h < size; h *= 2) {
    ForEach(block, s.kRows * size / 2, [&](int i) {
      const int row = i / (size / 2), pair = i % (size / 2);
      float* x = s.x + row * s.kStride + begin + pair / h * 2 * h + pair % h;
      const float a = x[0], b = x[h];
      x[0] = a + b;
      x[h] = a - b;
    });
  }
}

// The rows in s.x into the rotated space.
template <typename Block, typename Rows>
SEINE_BODY void RotateRows(Block& block, Rows& s, int dim, const float* signs) {
  int size = 32;  // the largest power of two <= dim
  while (size * 2 <= dim) size *= 2;
  RotateRows(block, s, 0, size, signs);
  if (size < dim) RotateRows(block, s, dim - size, size, signs + size);
}

// Subvector b of one key: signs into the coarse tile, magnitude bins into the record. Returns the weight r_b^2 /
// alpha_b.
SEINE_BODY inline float EncodeSubvector(const float* x, const RsqTables& tables, int b, int subvectors, uint8_t* sign,
                                        uint8_t* record) {
  float norm[8], alpha[8];
  for (int j = 0; j < 8; ++j) norm[j] = x[j] * x[j];
  const float r2 = SumTree(norm, 8);
  uint32_t signs = 0, planes[3] = {0, 0, 0};
  for (int j = 0; j < 8; ++j) {
    const float v = x[j], v2 = v * v;
    int t = 0;
    float level = tables.levels[0];
    for (int i = 0; i < 7; ++i) {
      if (!(v2 > tables.thresholds2[i] * r2)) break;
      t = i + 1;
      level = tables.levels[i + 1];
    }
    signs |= static_cast<uint32_t>(v >= 0) << j;
    for (int p = 0; p < 3; ++p) planes[p] |= static_cast<uint32_t>((t >> p) & 1) << j;
    alpha[j] = level * std::fabs(v);
  }
  *sign = static_cast<uint8_t>(signs);
  for (int p = 0; p < 3; ++p) record[p * subvectors + b] = static_cast<uint8_t>(planes[p]);
  const float a = SumTree(alpha, 8);
  return a > 0 ? r2 / a : 0.0f;
}

// Signs and magnitudes of the rows in s.x, which are [row, row + kRows) of the window at `first`, and what its factors
// are made of.
template <typename Block, int kDim>
SEINE_BODY void EncodeRsqRows(Block& block, RsqShared<kDim>& s, const EncodeItem& item, int first, int row) {
  const CodeLayout& layout = item.codec->layout;
  const int dim = layout.head_dim, subvectors = dim / 8, coarse_bytes = layout.coarse_bytes;
  auto& window = s.window;
  uint8_t* coarse = item.out.coarse + static_cast<int64_t>(first + row) * coarse_bytes;
  uint8_t* fine = item.out.fine + static_cast<int64_t>(first + row) * layout.fine_bytes;
  float* weights = s.weights + row * subvectors;
  const auto byte_at = [&](int key, int b) {
    return coarse + key / kTileTokens * kTileTokens * coarse_bytes + b / 4 * 64 + key % kTileTokens * 4 + b % 4;
  };
  ForEach(block, window.kRows * coarse_bytes, [&](int i) {
    const int key = i % window.kRows, b = i / window.kRows;
    if (b >= subvectors) {
      *byte_at(key, b) = 0;
      return;
    }
    weights[key * subvectors + b] = EncodeSubvector(window.x + key * window.kStride + b * 8, item.codec->rsq.magnitudes,
                                                    b, subvectors, byte_at(key, b), fine + key * layout.fine_bytes);
  });
  SumRows(block, window, dim, s.squares + row, [](float x) { return x * x; });
  SumRows(block, window, dim, s.absolutes + row, [](float x) { return std::fabs(x); });
}

// The window's factors, when all its rows are encoded.
template <typename Block, int kDim>
SEINE_BODY void EncodeRsqFactors(Block& block, RsqShared<kDim>& s, const EncodeItem& item, int first) {
  const CodeLayout& layout = item.codec->layout;
  const int subvectors = layout.head_dim / 8;
  uint8_t* fine = item.out.fine + static_cast<int64_t>(first) * layout.fine_bytes;
  ForEach(block, kWindowTokens, [&](int key) {  // the 1-bit factor |x|^2 / |x|_1
    s.squares[key] = s.absolutes[key] > 0 ? s.squares[key] / s.absolutes[key] : 0.0f;
  });
  StoreFactors(block, &s.window.largest, s.squares, item.out.factor_base + first / kWindowTokens,
               [&](int key, uint8_t code) { item.out.factor[first + key] = code; });
  const uint32_t base =
      FactorBaseOf(block, &s.window.largest, kWindowTokens * subvectors, [&](int i) { return s.weights[i]; });
  ForEach(block, kWindowTokens * subvectors, [&](int i) {
    if (i == 0) item.out.fine_base[first / kWindowTokens] = base;
    fine[i / subvectors * layout.fine_bytes + 3 * subvectors + i % subvectors] = EncodeFactor(s.weights[i], base);
  });
}

// One unit a block.
template <int kDim>
struct EncodeRsqBody {
  using Shared = RsqShared<kDim>;
  template <typename Block>
  SEINE_BODY static void Run(Block& block, Shared& s, const EncodeArgs& args) {
    const EncodeUnit unit = args.units[block.index().x];
    const EncodeItem& item = args.items[unit.item];
    const CodecTables& codec = *item.codec;
    ForEachWindow(
        block, s.window, item, unit.first,
        [&] { RotateRows(block, s.window, codec.layout.head_dim, codec.rsq.signs.data); },
        [&](int first, int row) { EncodeRsqRows(block, s, item, first, row); },
        [&](int first) { EncodeRsqFactors(block, s, item, first); });
  }
};

}  // namespace seine::cuda

#endif  // SEINE_KERNELS_CODECS_RSQ_ENCODE_CUDA_H_
