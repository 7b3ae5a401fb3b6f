// What all encoders do of a unit: rows to fp32, the centre, and the walk over its windows of 64 keys.
//
// A block holds rows of one window in shared memory, key-major: all 64, or of wide heads as many at a time as every
// device has memory for. Sums run in the CPU's order (rows.h): a mean's rows one after another, a row's elements in 16
// lanes and one tree.
#ifndef SEINE_KERNELS_CODECS_ENCODE_ENCODE_CUDA_H_
#define SEINE_KERNELS_CODECS_ENCODE_ENCODE_CUDA_H_

#include <cstdint>

#include "kernels/codecs/encode/encode_items.h"
#include "kernels/codecs/kinds/registry.h"
#include "kernels/cuda/block.h"
#include "kernels/math.h"

namespace seine::cuda {

// Rows of up to kDim elements lie kDim + 1 apart, so that lanes that take a key each meet different banks. kHeld of a
// window at a time, in whole tiles.
template <int kDim, int kHeld>
struct WindowShared {
  static constexpr int kStride = kDim + 1, kRows = kHeld;
  static_assert(kRows % kTileTokens == 0 && kWindowTokens % kRows == 0);
  float x[kRows * kStride];
  float centre[kDim];  // as stored
  float partial[kRows * 17];
  uint32_t largest;  // bits of a non-negative float
};

SEINE_BODY inline float ElementOf(const uint8_t* row, DType dtype, int j) {
  if (dtype == DType::kFloat32) return reinterpret_cast<const float*>(row)[j];
  const uint16_t bits = reinterpret_cast<const uint16_t*>(row)[j];
  return dtype == DType::kFloat16 ? HalfToFloat(bits) : Bf16ToFloat(bits);
}

// The sum of lanes[n], n a power of two: halves are added, as in every sum of this code base.
SEINE_BODY inline float SumTree(float* lanes, int n) {
  for (int h = n / 2; h >= 1; h /= 2) {
    for (int i = 0; i < h; ++i) lanes[i] = lanes[i] + lanes[i + h];
  }
  return lanes[0];
}

// fn(i) for i < n, spread over the lanes; then a barrier.
template <typename Block, typename Fn>
SEINE_BODY void ForEach(Block& block, int n, Fn fn) {
  block.Lanes([&](int lane) {
    for (int i = lane; i < n; i += block.num_lanes()) fn(i);
  });
}

// The largest of value(i) >= 0, i < n.
template <typename Block, typename Value>
SEINE_BODY float LargestOf(Block& block, uint32_t* shared, int n, Value value) {
  block.Lanes([&](int lane) {
    if (lane == 0) *shared = 0;
  });
  ForEach(block, n, [&](int i) { block.AtomicMax(shared, FloatBits(value(i))); });
  return BitsFloat(block.Read(*shared));
}

// The base of value(i) >= 0, i < n. `shared` is used.
template <typename Block, typename Value>
SEINE_BODY uint32_t FactorBaseOf(Block& block, uint32_t* shared, int n, Value value) {
  constexpr uint32_t kMost = 0x7FFFFFFFu;  // no bits above it, infinity's among them: order is turned round below it
  const float largest = LargestOf(block, shared, n, value);
  const float mirrored = LargestOf(block, shared, n, [&](int i) { return BitsFloat(kMost - FloatBits(value(i))); });
  return FactorBase(largest, BitsFloat(kMost - FloatBits(mirrored)));
}

// Keys [first, first + kRows) of the item into s.x. turn() brings them to the space where they are centred.
template <typename Block, typename Rows, typename Turn>
SEINE_BODY void LoadRows(Block& block, Rows& s, const EncodeItem& item, int first, Turn turn) {
  const int dim = item.codec->layout.head_dim;
  ForEach(block, s.kRows * dim, [&](int i) {
    const uint8_t* row = item.rows + (first + i / dim) * item.stride_bytes;
    s.x[i / dim * s.kStride + i % dim] = ElementOf(row, item.dtype, i % dim);
  });
  turn();
}

// The unit's mean into the centre plane and, as stored, into s.centre. Leaves the unit's last rows in s.x.
template <typename Block, typename Rows, typename Turn>
SEINE_BODY void MakeCentre(Block& block, Rows& s, const EncodeItem& item, int first, Turn turn) {
  const CodeLayout& layout = item.codec->layout;
  const int dim = layout.head_dim, tokens = layout.centre_window;
  const float share = 1.0f / static_cast<float>(tokens);
  for (int row = 0; row < tokens; row += s.kRows) {
    LoadRows(block, s, item, first + row, turn);
    ForEach(block, dim, [&](int j) {
      float sum = row == 0 ? s.x[j] : s.centre[j] + s.x[j];
      for (int i = 1; i < s.kRows; ++i) sum = sum + s.x[i * s.kStride + j];
      s.centre[j] = row + s.kRows == tokens ? sum * share : sum;
    });
  }
  const Scale8 scale = Scale8Of(LargestOf(block, &s.largest, dim, [&](int j) { return std::fabs(s.centre[j]); }));
  ForEach(block, dim, [&](int j) {
    const int8_t value = ToInt8(s.centre[j], scale.inverse);
    item.out.centre[static_cast<int64_t>(first / tokens) * dim + j] = value;
    if (j == 0) item.out.centre_scale[first / tokens] = scale.step;
    s.centre[j] = static_cast<float>(value) * scale.step;
  });
}

// Calls encode(first, row) of each window while its rows [row, row + kRows), centred, are in s.x, then end(first).
// turn() as LoadRows'.
template <typename Block, typename Rows, typename Turn, typename Encode, typename End>
SEINE_BODY void ForEachWindow(Block& block, Rows& s, const EncodeItem& item, int first, Turn turn, Encode encode,
                              End end) {
  const CodeLayout& layout = item.codec->layout;
  const int dim = layout.head_dim, keys = UnitKeys(layout);
  const bool own = layout.centre_window > 0, centred = own || item.shared_centre != nullptr;
  if (own) {
    MakeCentre(block, s, item, first, turn);
  } else if (centred) {
    ForEach(block, dim, [&](int j) { s.centre[j] = static_cast<float>(item.shared_centre[j]) * item.shared_scale; });
  }
  for (int w = first; w < first + keys; w += kWindowTokens) {
    for (int row = 0; row < kWindowTokens; row += s.kRows) {
      if (!own || keys > s.kRows) LoadRows(block, s, item, w + row, turn);
      if (centred) {
        ForEach(block, s.kRows * dim, [&](int i) {
          float& x = s.x[i / dim * s.kStride + i % dim];
          x = x - s.centre[i % dim];
        });
      }
      encode(w, row);
    }
    end(w);
  }
}

// Each row's sum of value(x), in 16 lanes and one tree: total[kRows].
template <typename Block, typename Rows, typename Value>
SEINE_BODY void SumRows(Block& block, Rows& s, int dim, float* total, Value value) {
  ForEach(block, s.kRows * 16, [&](int i) {
    float sum = 0;
    for (int j = i % 16; j < dim; j += 16) sum = sum + value(s.x[i / 16 * s.kStride + j]);
    s.partial[i / 16 * 17 + i % 16] = sum;
  });
  ForEach(block, s.kRows, [&](int row) { total[row] = SumTree(s.partial + row * 17, 16); });
}

// One byte a key: factors[64] above the base of the largest. put(key, byte). `shared` is used.
template <typename Block, typename Put>
SEINE_BODY void StoreFactors(Block& block, uint32_t* shared, const float* factors, uint32_t* base_out, Put put) {
  const uint32_t base = FactorBaseOf(block, shared, kWindowTokens, [&](int k) { return factors[k]; });
  ForEach(block, kWindowTokens, [&](int key) {
    if (key == 0) *base_out = base;
    put(key, EncodeFactor(factors[key], base));
  });
}

}  // namespace seine::cuda

#endif  // SEINE_KERNELS_CODECS_ENCODE_ENCODE_CUDA_H_
