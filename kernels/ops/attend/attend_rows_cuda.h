// A tile of rows, dense ones or a set's. Addresses of all are found first; then keys and values are asked for together,
// 16 bytes a lane, so that the link's latency is waited for once.
#ifndef SEINE_KERNELS_OPS_ATTEND_ATTEND_ROWS_CUDA_H_
#define SEINE_KERNELS_OPS_ATTEND_ATTEND_ROWS_CUDA_H_

#include <cstdint>

#include "kernels/cuda/block.h"
#include "kernels/cuda/load.h"
#include "kernels/math.h"
#include "kernels/ops/attend/attend_part_cuda.h"

namespace seine::cuda {

// fp16 as HalfToFloat has it, by the device's own instruction.
SEINE_BODY inline float WidenHalf(uint16_t bits) {
#ifdef __CUDA_ARCH__
  float wide;
  asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(bits));
  return wide;
#else
  return HalfToFloat(bits);
#endif
}

// Entry i of a row in shared memory.
SEINE_BODY inline float EntryOf(const uint8_t* row, DType dtype, int i) {
  if (dtype == DType::kFloat32) return reinterpret_cast<const float*>(row)[i];
  const uint16_t bits = reinterpret_cast<const uint16_t*>(row)[i];
  return dtype == DType::kFloat16 ? WidenHalf(bits) : Bf16ToFloat(bits);
}

// 16 bytes of a row as numbers; returns how many.
SEINE_BODY inline int WidenQuad(const Quad& quad, DType dtype, float* out) {
  if (dtype == DType::kFloat32) {
    SEINE_UNROLL
    for (int i = 0; i < 4; ++i) out[i] = BitsFloat(quad.word[i]);
    return 4;
  }
  SEINE_UNROLL
  for (int i = 0; i < 8; ++i) {
    const auto bits = static_cast<uint16_t>(quad.word[i / 2] >> (i % 2 * 16));
    out[i] = dtype == DType::kFloat16 ? WidenHalf(bits) : Bf16ToFloat(bits);
  }
  return 8;
}

SEINE_BODY inline const uint8_t* RowAt(const AttendRows& rows, int head_dim, int32_t place) {
  const int32_t chunk = place / rows.chunk_tokens;
  return rows.chunks[chunk] + (place - chunk * rows.chunk_tokens) * static_cast<int64_t>(BytesOf(rows.dtype, head_dim));
}

// Row r of a part that is not of windows.
SEINE_BODY inline int32_t PlaceOf(const AttendItem& item, const AttendPart& part, int32_t r) {
  if (part.kind == AttendKind::kSet) return item.sets[part.set].places[r];
  int run = 0;
  for (; r >= item.dense[run].end - item.dense[run].begin; ++run) r -= item.dense[run].end - item.dense[run].begin;
  return item.dense[run].begin + r;
}

// Addresses of rows [first, first + count) of the part.
template <typename Block>
SEINE_BODY void FindRows(Block& block, AttendShared& s, const AttendItem& item, const AttendPart& part, int first,
                         int count) {
  block.Lanes([&](int lane) {
    if (lane >= kAttendTile) return;
    s.keys[lane] = s.rows[lane] = nullptr;
    if (lane >= count) return;
    const int32_t place = PlaceOf(item, part, first + lane);
    s.rows[lane] = RowAt(item.values, item.head_dim, place);
    if (part.kind != AttendKind::kSet || item.sets[part.set].logits == nullptr) {
      s.keys[lane] = RowAt(item.keys, item.head_dim, place);
    }
  });
}

// Rows of values that shared memory holds at once.
SEINE_BODY inline int ValuesAtOnce(const AttendItem& item) {
  return Least(kAttendTile, kAttendBytes / static_cast<int>(BytesOf(item.values.dtype, item.head_dim)));
}

// A lane's pieces of rows [first, first + rows) of values, to shared memory.
SEINE_BODY inline void LoadValues(AttendShared& s, const AttendItem& item, int first, int rows, int lane) {
  const int row_bytes = static_cast<int>(BytesOf(item.values.dtype, item.head_dim));
  for (int at = lane % kLanesOfRow * kQuadBytes; at < row_bytes; at += kLanesOfRow * kQuadBytes) {
    Quad quads[kRowsOfLane];
    SEINE_UNROLL
    for (int i = 0; i < kRowsOfLane; ++i) {
      const int r = lane / kLanesOfRow + i * kRowsAtOnce;
      const uint8_t* row = r < rows ? s.rows[first + r] : nullptr;
      quads[i] = Quad{};
      if (row != nullptr) quads[i] = LoadQuad(row + at);
    }
    SEINE_UNROLL
    for (int i = 0; i < kRowsOfLane; ++i) {
      const int r = lane / kLanesOfRow + i * kRowsAtOnce;
      if (r < rows && s.rows[first + r] != nullptr) *reinterpret_cast<Quad*>(s.values + r * row_bytes + at) = quads[i];
    }
  }
}

using RowDots = FloatsOf<kRowsOfLane * kAttendHeads>;

// A lane's share of the dots of its rows of keys with the part's queries, of at most kHeads: of[g * kRowsOfLane + i] of
// its i-th row.
template <int kHeads>
SEINE_BODY void DotKeys(const AttendShared& s, const AttendItem& item, int heads, int lane, RowDots* dots) {
  SEINE_UNROLL
  for (int i = 0; i < kRowsOfLane * kAttendHeads; ++i) dots->of[i] = 0;
  const int row_bytes = static_cast<int>(BytesOf(item.keys.dtype, item.head_dim));
  int first = item.keys.dtype == DType::kFloat32 ? 4 : 8;
  const int step = kLanesOfRow * first;
  first *= lane % kLanesOfRow;
  for (int at = lane % kLanesOfRow * kQuadBytes; at < row_bytes; at += kLanesOfRow * kQuadBytes, first += step) {
    Quad quads[kRowsOfLane];
    SEINE_UNROLL
    for (int i = 0; i < kRowsOfLane; ++i) {
      const uint8_t* row = s.keys[lane / kLanesOfRow + i * kRowsAtOnce];
      quads[i] = Quad{};
      if (row != nullptr) quads[i] = LoadQuad(row + at);
    }
    SEINE_UNROLL
    for (int i = 0; i < kRowsOfLane; ++i) {
      float entries[8] = {};
      const int n = WidenQuad(quads[i], item.keys.dtype, entries);
      SEINE_UNROLL
      for (int g = 0; g < kHeads; ++g) {
        if (g >= heads) continue;
        float sum = dots->of[g * kRowsOfLane + i];
        SEINE_UNROLL
        for (int j = 0; j < 8; ++j) {
          if (j < n) sum = sum + entries[j] * s.queries[g * QueryStride(kHeads) + first + j];
        }
        dots->of[g * kRowsOfLane + i] = sum;
      }
    }
  }
}

// Logits of the tile's rows, and as many of its values as shared memory holds.
template <typename Block>
SEINE_BODY void ReadRows(Block& block, AttendShared& s, const AttendItem& item, const AttendPart& part, int first,
                         int count) {
  FindRows(block, s, item, part, first, count);
  const int heads = part.heads, rows = Least(count, ValuesAtOnce(item));
  const float* logits = part.kind == AttendKind::kSet ? item.sets[part.set].logits : nullptr;
  if (logits != nullptr) {
    block.Lanes([&](int lane) {
      if (lane < count) {
        for (int g = 0; g < heads; ++g) s.weights[g][lane] = CapLogit(logits[first + lane], item.softcap);
      }
      LoadValues(s, item, 0, rows, lane);
    });
    return;
  }
  typename Block::template Local<RowDots> dots(block);
  block.Lanes([&](int lane) {
    LoadValues(s, item, 0, rows, lane);
    if (item.head_dim <= kNarrowHeadDim) {
      DotKeys<HeadsOfBlock(kNarrowHeadDim)>(s, item, heads, lane, &dots[lane]);
    } else {
      DotKeys<HeadsOfBlock(kMaxHeadDim)>(s, item, heads, lane, &dots[lane]);
    }
  });
  block.template Butterfly<kLanesOfRow>(dots, heads * kRowsOfLane, SumOf());
  block.Lanes([&](int lane) {
    if (lane % kLanesOfRow != 0) return;
    SEINE_UNROLL
    for (int i = 0; i < kRowsOfLane * kAttendHeads; ++i) {
      const int g = i / kRowsOfLane, r = lane / kLanesOfRow + i % kRowsOfLane * kRowsAtOnce;
      if (g < heads && r < count) s.weights[g][r] = CapLogit(dots[lane].of[i] * item.scale, item.softcap);
    }
  });
}

}  // namespace seine::cuda

#endif  // SEINE_KERNELS_OPS_ATTEND_ATTEND_ROWS_CUDA_H_
