// What blocks' rows are attended by, whatever multiplies them: rows of queries lie in lanes of strips, and the softmax
// goes along the keys. Per-target header.
#if defined(SEINE_KERNELS_OPS_ATTEND_BLOCK_STRIPS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SEINE_KERNELS_OPS_ATTEND_BLOCK_STRIPS_INL_H_
#undef SEINE_KERNELS_OPS_ATTEND_BLOCK_STRIPS_INL_H_
#else
#define SEINE_KERNELS_OPS_ATTEND_BLOCK_STRIPS_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "kernels/cpu/simd-inl.h"
#include "kernels/ops/attend/block_attention.h"
#include "kernels/ops/attend/block_softmax.h"
#include "kernels/stop.h"

HWY_BEFORE_NAMESPACE();
namespace seine::cpu::HWY_NAMESPACE {

using DI = hn::RebindToSigned<DF>;
using DU = hn::RebindToUnsigned<DF>;

// Three vectors of rows.
constexpr int kVecs = 3;
constexpr int kLanes = static_cast<int>(kN);
constexpr int kStripRows = kVecs * kLanes;
constexpr size_t kCacheLine = 64;

// 2^x for x <= kLazyExponent: 0 below -127, and exactly 1 at 0.
HWY_INLINE VF Exp2(VF x) {
  const DF d;
  const DI di;
  x = hn::Max(x, hn::Set(d, kLeastExponent));
  const VF shifter = hn::Set(d, 12582912.0f);  // 1.5 * 2^23: a sum's last bit is a whole one
  const VF shifted = hn::Add(x, shifter), part = hn::Sub(x, hn::Sub(shifted, shifter));
  VF p = hn::Set(d, kExp2Terms[0]);
  for (int i = 1; i < kNumExp2Terms; ++i) p = hn::MulAdd(p, part, hn::Set(d, kExp2Terms[i]));
  const auto exponent = hn::ShiftLeft<23>(hn::BitCast(di, shifted));
  return hn::BitCast(d, hn::Add(hn::BitCast(di, p), exponent));
}

// Blocks of four lanes: block b of v[i] becomes lane 4 b + i of each of the four.
HWY_INLINE void TurnFour(VF* v) {
  const DF d;
  const hn::Repartition<double, DF> pairs;
  const auto low01 = hn::BitCast(pairs, hn::InterleaveLower(d, v[0], v[1]));
  const auto low23 = hn::BitCast(pairs, hn::InterleaveLower(d, v[2], v[3]));
  const auto high01 = hn::BitCast(pairs, hn::InterleaveUpper(d, v[0], v[1]));
  const auto high23 = hn::BitCast(pairs, hn::InterleaveUpper(d, v[2], v[3]));
  v[0] = hn::BitCast(d, hn::InterleaveLower(pairs, low01, low23));
  v[1] = hn::BitCast(d, hn::InterleaveUpper(pairs, low01, low23));
  v[2] = hn::BitCast(d, hn::InterleaveLower(pairs, high01, high23));
  v[3] = hn::BitCast(d, hn::InterleaveUpper(pairs, high01, high23));
}
// Puts block b of v[i] to out + (4 b + i) * step.
HWY_INLINE void StoreBlocks(const VF* v, float* out, size_t step) {
  alignas(64) float lanes[kLanes];
  for (int i = 0; i < 4; ++i) {
    hn::Store(v[i], DF(), lanes);
    for (int b = 0; b < kLanes / 4; ++b) std::memcpy(out + (4 * b + i) * step, lanes + 4 * b, 4 * sizeof(float));
  }
}

// What a thread works in. All [..][kStripRows] with rows in lanes, but `keys` and `values`, [kTileKeys][head_dim].
struct Workspace {
  struct alignas(64) Line {
    float lanes[16];
  };
  std::vector<Line> memory;
  float *keys, *values, *logits, *queries, *sums, *most, *total;

  Workspace(int dim, int strips) {
    const size_t tile = static_cast<size_t>(kTileKeys) * dim, rows = static_cast<size_t>(strips) * kStripRows;
    memory.resize((2 * tile + kTileKeys * kStripRows + 2 * rows * dim + 2 * rows) / 16 + 1);
    float* at = memory.data()->lanes;
    const auto take = [&](size_t count) { return at += count, at - count; };
    keys = take(tile), values = take(tile), logits = take(static_cast<size_t>(kTileKeys) * kStripRows);
    queries = take(rows * dim), sums = take(rows * dim), most = take(rows), total = take(rows);
  }
};

// Has the rows of the tile after this one come while this one is worked at.
HWY_INLINE void PrefetchTile(const BlockTask& task, const ChunkedRows& rows, const KeyTile& tile) {
  const size_t bytes = BytesOf(rows.dtype, rows.head_dim);
  for (const int32_t run : tile.runs) {
    if (run < 0) continue;
    for (int i = 0; i < kRunKeys && run + i < task.num_places; ++i) {
      const auto* row = static_cast<const uint8_t*>(rows.row(run + i));
      for (size_t at = 0; at < bytes; at += kCacheLine) __builtin_prefetch(row + at);
    }
  }
}

// Logits in powers of two under a cap in these: x becomes cap tanh(x / cap).
template <int kOf>
HWY_INLINE void Cap(float cap, float* logits) {
  const DF d;
  const VF vcap = hn::Set(d, cap), by = hn::Set(d, CapExponent(cap)), one = hn::Set(d, 1.0f);
  for (int key = 0; key < kTileKeys; ++key) {
    for (int v = 0; v < kOf; ++v) {
      float* at = logits + key * kStripRows + v * kLanes;
      const VF x = hn::Load(d, at), t = Exp2(hn::Mul(hn::Abs(x), by));
      hn::Store(hn::CopySign(hn::Mul(hn::Div(hn::Sub(one, t), hn::Add(one, t)), vcap), x), d, at);
    }
  }
}

// Logits of keys that a lane does not see, so that they weigh nothing.
template <int kOf>
HWY_INLINE void Hide(const uint32_t (&words)[2][kStripRows], float unit, float* logits) {
  const DF d;
  const DU du;
  const VF hidden = hn::Set(d, kHidden / unit);
  for (int v = 0; v < kOf; ++v) {
    for (int key = 0; key < kTileKeys; ++key) {
      float* at = logits + key * kStripRows + v * kLanes;
      const auto word = hn::LoadU(du, words[key / 32] + v * kLanes);
      const auto sees = hn::TestBit(word, hn::Set(du, 1u << (key % 32)));
      hn::Store(hn::IfThenElse(hn::RebindMask(d, sees), hn::Load(d, at), hidden), d, at);
    }
  }
}

// A vector of rows' maximum, which goes up where the tile's logits, times `units` in powers of two, must have it. What
// was summed before is scaled then, once `complete` has been called. All point to the vector's first row; `sums` may be
// nullptr.
template <typename Complete>
HWY_INLINE VF Raise(const float* logits, VF units, float* most, float* total, float* sums, int dim, Complete complete) {
  const DF d;
  VF largest[4];
  for (int i = 0; i < 4; ++i) largest[i] = hn::Load(d, logits + i * kStripRows);
  for (int key = 4; key < kTileKeys; key += 4) {
    for (int i = 0; i < 4; ++i) largest[i] = hn::Max(largest[i], hn::Load(d, logits + (key + i) * kStripRows));
  }
  const VF peak = hn::Mul(hn::Max(hn::Max(largest[0], largest[1]), hn::Max(largest[2], largest[3])), units);
  const VF before = hn::Load(d, most);
  const auto raised = hn::Gt(peak, hn::Add(before, hn::Set(d, kLazyExponent)));
  if (hn::AllFalse(d, raised)) return before;
  const VF now = hn::IfThenElse(raised, peak, before), scale = Exp2(hn::Sub(before, now));
  complete();
  hn::Store(now, d, most);
  hn::Store(hn::Mul(hn::Load(d, total), scale), d, total);
  for (int j = 0; j < (sums == nullptr ? 0 : dim); ++j) {
    float* of = sums + static_cast<size_t>(j) * kStripRows;
    hn::Store(hn::Mul(hn::Load(d, of), scale), d, of);
  }
  return now;
}

// Rows [first, first + kStripRows) of a task, as far as there are.
struct Strip {
  int first, count, vecs;
};
HWY_INLINE Strip StripOf(const BlockTask& task, int s) {
  const int first = s * kStripRows, count = std::min(kStripRows, task.num_rows - first);
  return {first, count, (count + kLanes - 1) / kLanes};
}

// What the strip's lanes see of a tile. `all`: each sees all of it, and `words` is not set; `none`: nobody anything.
struct Sight {
  uint32_t words[2][kStripRows];
  bool all, none;
};
HWY_INLINE void Look(const BlockTask& task, const KeyTile& tile, const Strip& strip, Sight* sight) {
  const uint64_t present = PresentKeys(tile, task.num_places);
  if (tile.seen == nullptr && present == ~uint64_t{0}) {
    sight->all = true, sight->none = false;
    return;
  }
  uint64_t every = ~uint64_t{0}, any = 0;
  int token = -1;
  uint64_t word = 0;
  for (int i = 0; i < strip.vecs * kLanes; ++i) {
    if (i < strip.count && (strip.first + i) / task.group != token) {
      token = (strip.first + i) / task.group;
      word = present & (tile.seen == nullptr ? ~uint64_t{0} : tile.seen[token]);
      every &= word, any |= word;
    }
    sight->words[0][i] = static_cast<uint32_t>(word);
    sight->words[1][i] = static_cast<uint32_t>(word >> 32);
  }
  sight->all = every == ~uint64_t{0}, sight->none = any == 0;
}

HWY_INLINE void Begin(int strips, Workspace* w) {
  std::fill_n(w->most, strips * kStripRows, kNothingSeen);
  std::fill_n(w->total, strips * kStripRows, 0.0f);
}

// Rows' sums over their totals.
HWY_INLINE void PutOut(const BlockTask& task, const Workspace& w, float* const* outputs) {
  const DF d;
  const int dim = task.keys.head_dim;
  for (int r = 0; r < task.num_rows; r += kLanes) {
    const VF total = hn::LoadU(d, w.total + r);
    const VF share = hn::IfThenElseZero(hn::Gt(total, hn::Zero(d)), hn::Div(hn::Set(d, 1.0f), total));
    const float* const from = w.sums + static_cast<size_t>(r / kStripRows) * kStripRows * dim + r % kStripRows;
    const int count = std::min(kLanes, task.num_rows - r);
    for (int j = 0; j < dim; j += 4) {
      VF v[4];
      for (int i = 0; i < 4; ++i) v[i] = hn::Mul(hn::Load(d, from + static_cast<size_t>(j + i) * kStripRows), share);
      TurnFour(v);
      for (int i = 0; i < 4; ++i) {
        alignas(64) float lanes[kLanes];
        hn::Store(v[i], d, lanes);
        for (int row = i; row < count; row += 4) std::memcpy(outputs[r + row] + j, lanes + row - i, 4 * sizeof(float));
      }
    }
  }
}

// Goes through the tiles: `widen` readies one, and `attend` has a strip attend it.
template <typename Widen, typename Attend>
HWY_INLINE void ForEachTile(const BlockTask& task, int strips, Widen widen, Attend attend) {
  Sight sight;
  for (int64_t t = 0; t < task.num_tiles && !StopRequested(); ++t) {
    bool widened = false;
    for (int s = 0; s < strips; ++s) {
      const Strip strip = StripOf(task, s);
      Look(task, task.tiles[t], strip, &sight);
      if (sight.none) continue;
      if (!widened) {
        widen(task.tiles[t]);
        widened = true;
        if (t + 1 < task.num_tiles) {
          PrefetchTile(task, task.keys, task.tiles[t + 1]);
          PrefetchTile(task, task.values, task.tiles[t + 1]);
        }
      }
      attend(strip, sight, s);
    }
  }
}

}  // namespace seine::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
