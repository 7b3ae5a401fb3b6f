// The balanced code on a device: codecs/balanced/encode_cpu.cc with its matrix product on the tensor cores.
//
// The product of 16-bit rows and columns is exact in int32. Tensor cores multiply bytes: with x = 256 xh + xl and
// w = 256 wh + wl + 128, all four signed bytes,
//   sum x w = 65536 sum xh wh + 256 (sum xh wl + sum xl wh) + sum xl wl + 128 sum x,
// each sum within int32 and the whole modulo 2^32, which is exact because the result fits.
#ifndef SEINE_KERNELS_CODECS_BALANCED_ENCODE_CUDA_H_
#define SEINE_KERNELS_CODECS_BALANCED_ENCODE_CUDA_H_

#include <cstdint>

#include "kernels/codecs/balanced/gaussian_quantiser.h"
#include "kernels/codecs/encode/encode_cuda.h"
#include "kernels/codecs/kinds/balanced.h"
#include "kernels/codecs/kinds/registry.h"

namespace seine::cuda {

inline constexpr int kRowWords = kMaxBalancedBytes / 4;

// Rows are [row, row + kRows) of a window, as the window's are.
template <int kDim>
struct BalancedShared {
  static constexpr int kDepth = kDim + 8;  // of a fixed-point row: 16 bytes more than a bank's turn
  static constexpr int kRows = kDim <= 128 ? kWindowTokens : kDim <= 256 ? kWindowTokens / 2 : kWindowTokens / 4;
  WindowShared<kDim, kRows> window;          // its x becomes products [dim][kRows] once the rows are in fixed point
  alignas(8) int16_t fixed[kRows * kDepth];  // x + 128, so that its bytes are xh and xl + 128
  uint8_t cells[kDim * kRows];
  uint32_t rows[kRows * (kRowWords + 1)];  // coarse row and record of each key
  int32_t row_sum[kRows];
  float squares[kRows], back[kRows], size[kRows], inverse[kRows];
  float sums[4][kWindowTokens];  // of the whole window: coarse top and sum, fine top and sum
};

// Four 16-bit numbers as their high bytes, and their low ones less 128.
struct Bytes4 {
  uint32_t high, low;
};
SEINE_BODY inline Bytes4 SplitBytes(const int16_t* four) {
  const uint32_t* p = reinterpret_cast<const uint32_t*>(four);
  const uint32_t a = p[0], b = p[1];
  return {(a >> 8 & 0xFFu) | (a >> 16 & 0xFF00u) | (b << 8 & 0xFF0000u) | (b & 0xFF000000u),
          ((a & 0xFFu) | (a >> 8 & 0xFF00u) | (b << 16 & 0xFF0000u) | (b << 8 & 0xFF000000u)) ^ 0x80808080u};
}

// Rows scaled to norm 32,000 in fixed point, past head_dim as zeros up to a depth of 32.
template <typename Block, int kDim>
SEINE_BODY void ToFixedPoint(Block& block, BalancedShared<kDim>& s, int dim) {
  const int depth = (dim + 31) / 32 * 32;
  SumRows(block, s.window, dim, s.squares, [](float x) { return x * x; });
  ForEach(block, s.kRows, [&](int key) {
    const BalancedScale scale = ScaleOf(s.squares[key]);
    s.inverse[key] = scale.forth;
    s.back[key] = scale.back;
  });
  ForEach(block, s.kRows * depth, [&](int i) {
    const int key = i / depth, j = i % depth;
    const int32_t v = j < dim ? RoundAway(s.window.x[key * s.window.kStride + j] * s.inverse[key]) : 0;
    s.fixed[key * s.kDepth + j] = static_cast<int16_t>(v + 128);
  });
  ForEach(block, s.kRows, [&](int key) {
    int32_t sum = 0;
    for (int j = 0; j < dim; ++j) sum += s.fixed[key * s.kDepth + j] - 128;
    s.row_sum[key] = sum;
  });
}

// x[i * kRows + key] = coordinate i of a key in units of its scale. A warp takes tiles of 16 keys by 8 coordinates.
template <typename Block, int kDim>
SEINE_BODY void Multiply(Block& block, BalancedShared<kDim>& s, const CodecTables& codec) {
  using A = typename Block::template Local<MmaA>;
  using B = typename Block::template Local<MmaB>;
  using D = typename Block::template Local<MmaD>;
  constexpr int kTiles = BalancedShared<kDim>::kRows / 16;  // of keys
  const int dim = codec.layout.head_dim, warps = block.num_lanes() / kWarp;
  for (int tile = 0; tile < kTiles * dim / 8; tile += warps) {
    D high(block), middle(block), low(block);
    block.Warps([&](int lane) { high[lane] = middle[lane] = low[lane] = MmaD{{0, 0, 0, 0}}; });
    const auto row_of = [&](int lane) { return (tile + lane / kWarp) % kTiles * 16 + lane % kWarp / 4; };
    const auto column_of = [&](int lane) { return (tile + lane / kWarp) / kTiles * 8; };  // dim or more: no tile
    for (int depth = 0; depth < dim; depth += 32) {
      A x_high(block), x_low(block);
      B w_high(block), w_low(block);
      block.Warps([&](int lane) {
        const int j = lane % 4 * 4;
        for (int part = 0; part < 4; ++part) {
          const Bytes4 x = SplitBytes(s.fixed + (row_of(lane) + part % 2 * 8) * s.kDepth + depth + part / 2 * 16 + j);
          x_high[lane].word[part] = x.high;
          x_low[lane].word[part] = x.low;
        }
        const int16_t* column = codec.balanced.key_map.data + (column_of(lane) + lane % kWarp / 4) * dim + depth + j;
        for (int part = 0; part < 2; ++part) {
          const bool inside = depth + part * 16 < dim && column_of(lane) < dim;  // head_dim is a multiple of 16
          const Bytes4 w = inside ? SplitBytes(column + part * 16) : Bytes4{0, 0};
          w_high[lane].word[part] = w.high;
          w_low[lane].word[part] = w.low;
        }
      });
      block.template Mma<false>(high, x_high, w_high);
      block.template Mma<false>(middle, x_high, w_low);
      block.template Mma<false>(middle, x_low, w_high);
      block.template Mma<false>(low, x_low, w_low);
    }
    block.Warps([&](int lane) {
      if (column_of(lane) >= dim) return;
      for (int part = 0; part < 4; ++part) {
        const int key = row_of(lane) + part / 2 * 8, i = column_of(lane) + lane % 4 * 2 + part % 2;
        const uint32_t sum = (static_cast<uint32_t>(high[lane].sum[part]) << 16) +
                             (static_cast<uint32_t>(middle[lane].sum[part]) << 8) +
                             static_cast<uint32_t>(low[lane].sum[part]) + (static_cast<uint32_t>(s.row_sum[key]) << 7);
        s.window.x[i * s.kRows + key] =
            static_cast<float>(static_cast<int32_t>(sum)) * codec.balanced.key_scale.data[i];
      }
    });
  }
  block.Lanes([](int) {});  // what warps stored is read by all
}

// Puts `bits` of `value` at bit `at` of a key's row.
template <typename Block>
SEINE_BODY void PutBits(uint32_t* row, int at, uint32_t value) {
  const uint64_t wide = static_cast<uint64_t>(value) << at % 32;
  const uint32_t low = static_cast<uint32_t>(wide), high = static_cast<uint32_t>(wide >> 32);
  if (low != 0) Block::AtomicOr(row + at / 32, low);
  if (high != 0) Block::AtomicOr(row + at / 32 + 1, high);
}

// Cells of all coordinates, and their bits in the rows.
template <typename Block, int kDim>
SEINE_BODY void Quantise(Block& block, BalancedShared<kDim>& s, const CodecTables& codec) {
  const int dim = codec.layout.head_dim;
  const GaussianTables& q = *codec.balanced.quantiser.data;
  const float share = 1.0f / static_cast<float>(dim);
  ForEach(block, s.kRows * (kRowWords + 1), [&](int i) { s.rows[i] = 0; });
  ForEach(block, s.kRows, [&](int key) {
    float squares = 0;
    for (int i = 0; i < dim; ++i) {
      const float a = s.window.x[i * s.kRows + key];
      squares = squares + a * a;
    }
    const float size = std::sqrt(squares * share);
    s.size[key] = size;
    s.inverse[key] = size > 0 ? 1.0f / size : 0.0f;
  });
  ForEach(block, dim * s.kRows, [&](int n) {
    const int key = n % s.kRows, i = n / s.kRows;
    const BalancedCell place = codec.balanced.cells.data[i];
    const int total = place.total_bits, kept = place.coarse_bits, rest = total - kept;
    if (total == 0) return;
    const float z = s.window.x[n] * s.inverse[key], u = std::fabs(z);
    const int half = 1 << (total - 1);
    int bin = 0;
    while (bin < half - 1 && u > q.thresholds[total][bin]) ++bin;
    const uint32_t cell = static_cast<uint32_t>(z >= 0 ? half + bin : half - 1 - bin);
    s.cells[n] = static_cast<uint8_t>(bin);
    uint32_t* row = s.rows + key * (kRowWords + 1);
    if (kept > 0) PutBits<Block>(row, place.coarse_at, cell >> rest);
    if (rest > 0) PutBits<Block>(row, codec.layout.coarse_bytes * 8 + place.fine_at, cell & ((1u << rest) - 1));
  });
}

// The four sums that the factors are made of, a lane each for every key: sum(lambda z^2) and sum(lambda z z^), over the
// coordinates in the coarse code and in the whole. Row 0 is `row` of the window.
template <typename Block, int kDim>
SEINE_BODY void SumFactors(Block& block, BalancedShared<kDim>& s, const CodecTables& codec, int row) {
  const GaussianTables& q = *codec.balanced.quantiser.data;
  ForEach(block, 4 * s.kRows, [&](int n) {
    const int key = n % s.kRows, which = n / s.kRows;
    float sum = 0;
    for (int i = 0; i < codec.layout.head_dim; ++i) {
      const int total = codec.balanced.cells.data[i].total_bits, kept = codec.balanced.cells.data[i].coarse_bits;
      if (total == 0 || (which < 2 && kept == 0)) continue;
      const float u = std::fabs(s.window.x[i * s.kRows + key] * s.inverse[key]);
      const int bin = s.cells[i * s.kRows + key];
      const float level = which == 1 ? q.merged[total][kept][bin >> (total - kept)] : q.levels[total][bin];
      sum = sum + u * codec.balanced.lambda.data[i] * (which % 2 == 0 ? u : level);
    }
    s.sums[which][row + key] = sum;
  });
  ForEach(block, 2 * s.kRows, [&](int n) {
    const int key = n % s.kRows, top = n / s.kRows * 2;
    const float scale = s.size[key] * s.back[key], sum = s.sums[top + 1][row + key];
    s.sums[top][row + key] = sum > 0 ? scale * (s.sums[top][row + key] / sum) : 0.0f;
  });
}

// Codes of the rows in s.window, which are [row, row + kRows) of the window at `first`, and what its factors are made
// of.
template <typename Block, int kDim>
SEINE_BODY void EncodeBalancedRows(Block& block, BalancedShared<kDim>& s, const EncodeItem& item, int first, int row) {
  const CodecTables& codec = *item.codec;
  const CodeLayout& layout = codec.layout;
  ToFixedPoint(block, s, layout.head_dim);
  Multiply(block, s, codec);
  Quantise(block, s, codec);
  SumFactors(block, s, codec, row);
  const int words = layout.coarse_bytes / 4, record_bytes = layout.fine_bytes - 1;
  uint8_t* fine = item.out.fine + static_cast<int64_t>(first + row) * layout.fine_bytes;
  ForEach(block, s.kRows * words, [&](int i) {
    const int key = first + row + i % s.kRows, word = i / s.kRows;
    const int64_t tile = static_cast<int64_t>(key / kTileTokens) * words + word;
    reinterpret_cast<uint32_t*>(item.out.coarse)[tile * kTileTokens + key % kTileTokens] =
        s.rows[i % s.kRows * (kRowWords + 1) + word];
  });
  ForEach(block, s.kRows * record_bytes, [&](int i) {
    const int key = i / record_bytes, byte = i % record_bytes;
    const uint32_t word = s.rows[key * (kRowWords + 1) + words + byte / 4];
    fine[key * layout.fine_bytes + byte] = static_cast<uint8_t>(word >> byte % 4 * 8);
  });
}

// The window's factors, when all its rows are encoded.
template <typename Block, int kDim>
SEINE_BODY void EncodeBalancedFactors(Block& block, BalancedShared<kDim>& s, const EncodeItem& item, int first) {
  const int fine_bytes = item.codec->layout.fine_bytes;
  uint8_t* fine = item.out.fine + static_cast<int64_t>(first) * fine_bytes;
  StoreFactors(block, &s.window.largest, s.sums[0], item.out.factor_base + first / kWindowTokens,
               [&](int key, uint8_t code) { item.out.factor[first + key] = code; });
  StoreFactors(block, &s.window.largest, s.sums[2], item.out.fine_base + first / kWindowTokens,
               [&](int key, uint8_t code) { fine[key * fine_bytes + fine_bytes - 1] = code; });
}

// One unit a block.
template <int kDim>
struct EncodeBalancedBody {
  using Shared = BalancedShared<kDim>;
  template <typename Block>
  SEINE_BODY static void Run(Block& block, Shared& s, const EncodeArgs& args) {
    const EncodeUnit unit = args.units[block.index().x];
    const EncodeItem& item = args.items[unit.item];
    ForEachWindow(
        block, s.window, item, unit.first, [] {},
        [&](int first, int row) { EncodeBalancedRows(block, s, item, first, row); },
        [&](int first) { EncodeBalancedFactors(block, s, item, first); });
  }
};

}  // namespace seine::cuda

#endif  // SEINE_KERNELS_CODECS_BALANCED_ENCODE_CUDA_H_
