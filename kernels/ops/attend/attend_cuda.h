// Bodies of the kernels of attend_items.h: attention in splits, each with a softmax of its own, then their merge.
//   of a split   p_i = w_i e^(s_i - m), m = max s_i;  its sums are sum p_i v_i, its total sum p_i
//   merged       M = max m;  output = sum e^(m - M) sums / sum e^(m - M) total,  log_sum_exp = M + log of the latter
// with w_i = 1, or for a window its rows that the head has not chosen. A split that sees nothing has m = -infinity and
// no sums; over nothing at all the output is 0 and the log-sum-exp -infinity. A NaN among a head's logits, as a query's
// gives, makes its total NaN, and with it all that is answered of the head.
//
// A block takes 64 rows at a time. Addresses of all are found first; then keys and values are asked for together, 16
// bytes a lane, so that the link's latency is waited for once. Rows in the host's memory are read over the link once
// for up to eight heads.
#ifndef SEINE_KERNELS_OPS_ATTEND_ATTEND_CUDA_H_
#define SEINE_KERNELS_OPS_ATTEND_ATTEND_CUDA_H_

#include <cmath>
#include <cstdint>

#include "kernels/cuda/block.h"
#include "kernels/cuda/load.h"
#include "kernels/math.h"
#include "kernels/ops/attend/attend_items.h"
#include "kernels/types.h"

namespace seine::cuda {

inline constexpr int kAttendLanes = 256;
inline constexpr int kAttendWarps = kAttendLanes / kWarp;
inline constexpr int kLanesOfRow = 16;
inline constexpr int kRowsAtOnce = kAttendLanes / kLanesOfRow;
inline constexpr int kRowsOfLane = kAttendTile / kRowsAtOnce;
inline constexpr int kSumsOfLane = kAttendHeads * kMaxDeviceHeadDim / kAttendLanes;  // entries of [heads][head_dim]
inline constexpr int kQuadBytes = 16;
static_assert(kAttendWarps == kAttendHeads && kAttendTile == 2 * kWarp);

struct AttendShared {
  alignas(16) uint8_t values[kAttendBytes];  // rows of values as they are stored, or windows' records
  float queries[kAttendHeads][kMaxDeviceHeadDim];
  uint32_t queries8[kAttendHeads][kMaxDeviceHeadDim / 4];
  float weights[kAttendHeads][kAttendTile];  // logits, then weights
  int32_t left[kAttendHeads][kAttendTile];   // of a window's rows, those that a head has not chosen
  const uint8_t* keys[kAttendTile];
  const uint8_t* rows[kAttendTile];  // of values
  // Largest logit and sum of each head so far, the factor by which a tile scales its sums, and the unit of its
  // queries8.
  float most[kAttendHeads], total[kAttendHeads], scale[kAttendHeads], unit[kAttendHeads];
};

enum class AttendKind : uint8_t { kDense = 0, kSet = 1, kWindows = 2 };

// A block's share of an item: rows, or windows, [begin, end) of one of its parts, for heads [first_head, first_head +
// heads).
struct AttendPart {
  AttendKind kind;
  int set;  // kSet
  int first_head, heads;
  int split;  // among a head's
  int32_t begin, end;
};

// Tiles of a part of `count`, cut evenly.
SEINE_BODY inline void CutPart(int32_t count, int tile, int splits, int split, AttendPart* part) {
  const int tiles = (count + tile - 1) / tile;
  part->begin = tiles * split / splits * tile;
  part->end = Least(tiles * (split + 1) / splits * tile, count);
}

// The part of block `block`, which the item has.
SEINE_BODY inline AttendPart PartOf(const AttendItem& item, int block) {
  AttendPart part;
  const int chunks = HeadChunks(item), of_sets = SetBlocks(item);
  const int dense = item.dense_splits * chunks, sets = item.set_splits * of_sets;
  part.set = 0;
  int chunk;
  if (block < dense) {
    part.kind = AttendKind::kDense;
    part.split = block / chunks;
    chunk = block % chunks;
    CutPart(item.dense_rows, kAttendTile, item.dense_splits, part.split, &part);
  } else if (block < dense + sets) {
    part.kind = AttendKind::kSet;
    const int split = (block - dense) / of_sets;
    chunk = (block - dense) % of_sets;
    if (item.num_sets > 1) part.set = chunk;
    CutPart(*item.sets[part.set].count, kAttendTile, item.set_splits, split, &part);
    part.split = item.dense_splits + split;
  } else {
    part.kind = AttendKind::kWindows;
    const int split = (block - dense - sets) / chunks;
    chunk = (block - dense - sets) % chunks;
    CutPart(item.num_windows, WindowsOfTile(item.head_dim), item.window_splits, split, &part);
    part.split = item.dense_splits + item.set_splits + split;
  }
  const bool alone = part.kind == AttendKind::kSet && item.num_sets > 1;
  part.first_head = alone ? chunk : chunk * kAttendHeads;
  part.heads = alone ? 1 : Least(kAttendHeads, item.group - part.first_head);
  return part;
}

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

// Under a cap c, c tanh(x / c), as CapEach has it; NaN stays.
SEINE_BODY inline float CapLogit(float x, float cap) {
  if (!(cap > 0) || x != x) return x;
  const float t = ExpNonPositive(fabsf(x) * (-2.0f / cap));
  return copysignf(((1.0f - t) / (1.0f + t)) * cap, x);
}

// The part's queries, for windows in int8 too, and an empty softmax.
template <typename Block>
SEINE_BODY void BeginPart(Block& block, AttendShared& s, const AttendItem& item, const AttendPart& part) {
  const int dim = item.head_dim, heads = part.heads;
  const float* queries = item.queries + static_cast<int64_t>(part.first_head) * dim;
  block.Lanes([&](int lane) {
    for (int i = lane; i < heads * dim; i += kAttendLanes) s.queries[i / dim][i % dim] = queries[i];
    if (lane >= kAttendHeads) return;
    s.most[lane] = -INFINITY;
    s.total[lane] = 0;
  });
  if (part.kind != AttendKind::kWindows) return;
  typename Block::template Local<FloatsOf<1>> largest(block);
  block.Lanes([&](int lane) {
    const int g = lane / kWarp;
    float most = 0;
    for (int j = lane % kWarp; g < heads && j < dim; j += kWarp) most = Most(most, fabsf(s.queries[g][j]));
    largest[lane].of[0] = most;
  });
  block.template Butterfly<kWarp>(largest, 1, MostOf());
  block.Lanes([&](int lane) {
    const int g = lane / kWarp;
    if (g >= heads) return;
    const Scale8 scale = Scale8Of(largest[lane].of[0]);
    for (int w = lane % kWarp; w < dim / 4; w += kWarp) {
      uint32_t word = 0;
      for (int i = 0; i < 4; ++i) {
        const auto byte = static_cast<uint8_t>(ToInt8(s.queries[g][w * 4 + i], scale.inverse));
        word |= static_cast<uint32_t>(byte) << (i * 8);
      }
      s.queries8[g][w] = word;
    }
    if (lane % kWarp == 0) s.unit[g] = scale.step * item.scale;
  });
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

// A lane's share of the dots of its rows of keys with the part's queries: of[g * kRowsOfLane + i] of its i-th row.
SEINE_BODY inline void DotKeys(const AttendShared& s, const AttendItem& item, int heads, int lane, RowDots* dots) {
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
      for (int g = 0; g < kAttendHeads; ++g) {
        if (g >= heads) continue;
        float sum = dots->of[g * kRowsOfLane + i];
        SEINE_UNROLL
        for (int j = 0; j < 8; ++j) {
          if (j < n) sum = sum + entries[j] * s.queries[g][first + j];
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
    DotKeys(s, item, heads, lane, &dots[lane]);
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

// Records, logits and counts of windows [first, first + count).
template <typename Block>
SEINE_BODY void ReadWindows(Block& block, AttendShared& s, const AttendItem& item, const AttendPart& part, int first,
                            int count) {
  const int dim = item.head_dim, heads = part.heads, words = WindowStride(dim) / 4, stride = RecordWords(dim);
  auto* const records = reinterpret_cast<uint32_t*>(s.values);
  block.Lanes([&](int lane) {
    for (int w = lane / kWarp; w < count; w += kAttendWarps) {
      const int window = first + w, chunk = window / item.chunk_windows;
      const uint8_t* record =
          item.windows[chunk] + (window - chunk * item.chunk_windows) * static_cast<int64_t>(WindowStride(dim));
      for (int i = lane % kWarp; i < words; i += kWarp) records[w * stride + i] = LoadWord(record + i * 4);
    }
    for (int i = lane; i < kAttendHeads * kAttendTile; i += kAttendLanes) {
      s.left[i / kAttendTile][i % kAttendTile] = kWindowTokens;
    }
  });
  block.Lanes([&](int lane) {
    const int32_t begin = item.zone_begin + first * kWindowTokens, end = begin + count * kWindowTokens;
    const int sets = item.num_sets > 1 ? heads : item.num_sets;
    for (int i = 0; i < sets; ++i) {
      const AttendSet& set = item.sets[item.num_sets > 1 ? part.first_head + i : 0];
      const int chosen = *set.count;
      for (int r = lane; r < chosen; r += kAttendLanes) {
        const int32_t place = set.places[r];
        if (place < begin || place >= end) continue;
        const int w = (place - begin) / kWindowTokens;
        for (int g = i; g < (item.num_sets > 1 ? i + 1 : heads); ++g) block.AtomicAdd(&s.left[g][w], -1);
      }
    }
  });
  block.Lanes([&](int lane) {
    const int w = lane % kAttendTile;
    if (w >= count) return;
    const uint32_t* record = records + w * stride;
    const float step = BitsFloat(record[dim / 2]);  // of the keys' mean
    for (int g = lane / kAttendTile; g < heads; g += kAttendLanes / kAttendTile) {
      int32_t dot = 0;
      for (int i = 0; i < dim / 4; ++i) dot = Dot4(record[i], s.queries8[g][i], dot);
      const float logit = static_cast<float>(dot) * (step * s.unit[g]);
      s.weights[g][w] = s.left[g][w] > 0 ? CapLogit(logit, item.softcap) : -INFINITY;
    }
  });
}

// Logits to weights, of windows with their counts and the unit of their values; the softmax so far goes along.
template <typename Block>
SEINE_BODY void WeighTile(Block& block, AttendShared& s, const AttendItem& item, const AttendPart& part, int count) {
  typename Block::template Local<FloatsOf<1>> most(block), total(block);
  const bool windows = part.kind == AttendKind::kWindows;
  const int heads = part.heads, stride = RecordWords(item.head_dim);
  block.Lanes([&](int lane) {
    const int g = lane / kWarp;
    float largest = g < heads ? s.most[g] : -INFINITY;
    for (int r = lane % kWarp; g < heads && r < count; r += kWarp) largest = Most(largest, s.weights[g][r]);
    most[lane].of[0] = largest;
  });
  block.template Butterfly<kWarp>(most, 1, MostOf());
  block.Lanes([&](int lane) {
    const int g = lane / kWarp;
    const float largest = most[lane].of[0];
    float sum = 0;
    for (int r = lane % kWarp; g < heads && r < count; r += kWarp) {
      const float logit = s.weights[g][r];
      float weight = logit == -INFINITY ? 0.0f : ExpNonPositive(logit - largest);
      if (logit != logit) weight = logit;
      if (windows) weight = weight * static_cast<float>(s.left[g][r]);
      sum = sum + weight;
      const float* record = reinterpret_cast<const float*>(s.values) + r * stride;
      s.weights[g][r] = windows ? weight * record[item.head_dim / 2 + 1] : weight;
    }
    total[lane].of[0] = sum;
  });
  block.template Butterfly<kWarp>(total, 1, SumOf());
  block.Lanes([&](int lane) {
    const int g = lane / kWarp;
    if (g >= heads || lane % kWarp != 0) return;
    const float before = s.most[g], scale = before == -INFINITY ? 0.0f : ExpNonPositive(before - most[lane].of[0]);
    s.scale[g] = scale;
    s.most[g] = most[lane].of[0];
    s.total[g] = s.total[g] * scale + total[lane].of[0];
  });
}

using AttendSums = FloatsOf<kSumsOfLane>;

// sums[a] = sums[a] * scale(g) + the weighted values [first, first + rows) of the tile, whose row r is value(r, j); `a`
// stands for entry j of head g.
template <typename Scale, typename Value>
SEINE_BODY void AddToSums(const AttendShared& s, const AttendItem& item, int heads, int first, int rows, int lane,
                          Scale scale, Value value, AttendSums* sums) {
  const int dim = item.head_dim;
  SEINE_UNROLL
  for (int a = 0; a < kSumsOfLane; ++a) {
    const int index = lane + a * kAttendLanes;
    if (index >= heads * dim) continue;
    const int g = index / dim, j = index - g * dim;
    float sum = sums->of[a] * scale(g);
    for (int r = 0; r < rows; ++r) sum = sum + s.weights[g][first + r] * value(r, j);
    sums->of[a] = sum;
  }
}

template <typename Block>
SEINE_BODY void AddTile(Block& block, AttendShared& s, const AttendItem& item, const AttendPart& part, int count,
                        typename Block::template Local<AttendSums>& sums) {
  const auto scale = [&](int g) { return s.scale[g]; };
  if (part.kind == AttendKind::kWindows) {
    const int dim = item.head_dim, stride = RecordWords(dim) * 4;
    block.Lanes([&](int lane) {
      AddToSums(
          s, item, part.heads, 0, count, lane, scale,
          [&](int r, int j) { return static_cast<float>(static_cast<int8_t>(s.values[r * stride + dim + j])); },
          &sums[lane]);
    });
    return;
  }
  const int at_once = ValuesAtOnce(item), row_bytes = static_cast<int>(BytesOf(item.values.dtype, item.head_dim));
  const auto value = [&](int r, int j) { return EntryOf(s.values + r * row_bytes, item.values.dtype, j); };
  for (int first = 0; first < count; first += at_once) {
    const int rows = Least(at_once, count - first);
    if (first > 0) block.Lanes([&](int lane) { LoadValues(s, item, first, rows, lane); });
    block.Lanes([&](int lane) {
      if (first == 0) {
        AddToSums(s, item, part.heads, 0, rows, lane, scale, value, &sums[lane]);
      } else {
        AddToSums(
            s, item, part.heads, first, rows, lane, [](int) { return 1.0f; }, value, &sums[lane]);
      }
    });
  }
}

// Grid: (blocks of an item, items).
struct AttendBody {
  using Shared = AttendShared;
  template <typename Block>
  SEINE_BODY static void Run(Block& block, Shared& s, const AttendArgs& args) {
    const AttendItem& item = args.items[block.index().y];
    if (block.index().x >= BlocksOf(item)) return;
    const AttendPart part = PartOf(item, block.index().x);
    BeginPart(block, s, item, part);
    typename Block::template Local<AttendSums> sums(block);
    block.Lanes([&](int lane) {
      SEINE_UNROLL
      for (int a = 0; a < kSumsOfLane; ++a) sums[lane].of[a] = 0;
    });
    const int tile = part.kind == AttendKind::kWindows ? WindowsOfTile(item.head_dim) : kAttendTile;
    for (int first = part.begin; first < part.end; first += tile) {
      const int count = Least(tile, part.end - first);
      if (part.kind == AttendKind::kWindows) {
        ReadWindows(block, s, item, part, first, count);
      } else {
        ReadRows(block, s, item, part, first, count);
      }
      WeighTile(block, s, item, part, count);
      AddTile(block, s, item, part, count, sums);
    }
    const int dim = item.head_dim, splits = item.splits();
    block.Lanes([&](int lane) {
      if (lane < part.heads) {
        item.stats[(part.first_head + lane) * splits + part.split] = {s.most[lane], s.total[lane]};
      }
      if (part.begin >= part.end) return;
      SEINE_UNROLL
      for (int a = 0; a < kSumsOfLane; ++a) {
        const int index = lane + a * kAttendLanes;
        if (index >= part.heads * dim) continue;
        const int g = index / dim, slot = (part.first_head + g) * splits + part.split;
        item.sums[static_cast<int64_t>(slot) * dim + index - g * dim] = sums[lane].of[a];
      }
    });
  }
};

struct MergeShared {
  float weights[kMostSplitsOfHead];
  float most[kAttendWarps], total[kAttendWarps];
};

// Grid: (group, items).
struct MergeBody {
  using Shared = MergeShared;
  template <typename Block>
  SEINE_BODY static void Run(Block& block, Shared& s, const AttendArgs& args) {
    const AttendItem& item = args.items[block.index().y];
    const int g = block.index().x, dim = item.head_dim, splits = item.splits();
    if (g >= item.group) return;
    const AttendStats* stats = item.stats + static_cast<int64_t>(g) * splits;
    const float* sums = item.sums + static_cast<int64_t>(g) * splits * dim;
    typename Block::template Local<FloatsOf<1>> part(block);
    block.Lanes([&](int lane) {
      float most = -INFINITY;
      for (int i = lane; i < splits; i += kAttendLanes) most = Most(most, stats[i].most);
      part[lane].of[0] = most;
    });
    block.template Butterfly<kWarp>(part, 1, MostOf());
    block.Lanes([&](int lane) {
      if (lane % kWarp == 0) s.most[lane / kWarp] = part[lane].of[0];
    });
    const auto largest = [&] {
      float most = s.most[0];
      for (int w = 1; w < kAttendWarps; ++w) most = Most(most, s.most[w]);
      return most;
    };
    block.Lanes([&](int lane) {
      const float most = largest();
      float total = 0;
      for (int i = lane; i < splits; i += kAttendLanes) {
        const float weight = stats[i].most == -INFINITY ? 0.0f : ExpNonPositive(stats[i].most - most);
        s.weights[i] = weight;
        total = total + weight * stats[i].total;  // NaN stays, whatever the weight
      }
      part[lane].of[0] = total;
    });
    block.template Butterfly<kWarp>(part, 1, SumOf());
    block.Lanes([&](int lane) {
      if (lane % kWarp == 0) s.total[lane / kWarp] = part[lane].of[0];
    });
    block.Lanes([&](int lane) {
      float total = 0;
      for (int w = 0; w < kAttendWarps; ++w) total = total + s.total[w];
      const float share = total == 0 ? 0.0f : 1.0f / total;
      if (lane == 0) item.log_sum_exp[g] = total > 0 ? largest() + LogPositive(total) : total == 0 ? -INFINITY : total;
      if (lane >= dim) return;
      constexpr int kAhead = 8;
      float sum = 0;
      for (int i = 0; i < splits; i += kAhead) {
        float ahead[kAhead];
        SEINE_UNROLL
        for (int a = 0; a < kAhead; ++a) {
          const bool any = i + a < splits && s.weights[i + a] > 0;
          ahead[a] = any ? sums[static_cast<int64_t>(i + a) * dim + lane] * s.weights[i + a] : 0.0f;
        }
        SEINE_UNROLL
        for (int a = 0; a < kAhead; ++a) sum = sum + ahead[a];
      }
      item.output[g * dim + lane] = sum * share;
    });
  }
};

template <typename Run>
void ForEachKernel(const AttendArgs& args, Run run) {
  run(AttendBody(), BlockIndex{args.most_blocks, args.num_items}, Lanes<kAttendLanes>());
  run(MergeBody(), BlockIndex{args.most_group, args.num_items}, Lanes<kAttendLanes>());
}

}  // namespace seine::cuda

#endif  // SEINE_KERNELS_OPS_ATTEND_ATTEND_CUDA_H_
