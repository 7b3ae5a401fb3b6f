// Attention of blocks of query rows, for every Highway target. Rows of queries lie in lanes: logits, weights and sums
// of a strip of rows are vectors over rows, keys and values are broadcast, and no sum goes across lanes.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/ops/attend/block_attention_cpu.cc"
#include "hwy/foreach_target.h"
// clang-format off
#include "hwy/highway.h"
#include "kernels/cpu/simd-inl.h"
// clang-format on
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <vector>

#include "kernels/cpu/targets.h"
#include "kernels/math.h"
#include "kernels/ops/attend/block_attention.h"
#include "kernels/ops/attend/block_softmax.h"
#include "kernels/stop.h"

HWY_BEFORE_NAMESPACE();
namespace seine::cpu::HWY_NAMESPACE {

using DI = hn::RebindToSigned<DF>;
using DU = hn::RebindToUnsigned<DF>;

// A strip's sums stay in registers: three vectors of rows by as many keys, or coordinates, as there is room for.
constexpr int kVecs = 3;
constexpr int kLines = HWY_MAX_BYTES >= 64 || HWY_ARCH_ARM_A64 ? 8 : 4;
constexpr int kLanes = static_cast<int>(kN);
constexpr int kStripRows = kVecs * kLanes;
constexpr size_t kCacheLine = 64;

// 2^x for x <= kLazyExponent: 0 below -127, and exactly 1 at 0.
HWY_INLINE VF Exp2(VF x) {
  const DF d;
  const DI di;
  x = hn::Max(x, hn::Set(d, kLeastExponent));
  const VF whole = hn::Round(x), part = hn::Sub(x, whole);
  VF p = hn::Set(d, kExp2Terms[0]);
  for (int i = 1; i < kNumExp2Terms; ++i) p = hn::MulAdd(p, part, hn::Set(d, kExp2Terms[i]));
  const auto exponent = hn::ShiftLeft<23>(hn::ConvertTo(di, whole));
  return hn::BitCast(d, hn::Add(hn::BitCast(di, p), exponent));
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

void WidenTile(const BlockTask& task, const ChunkedRows& rows, const KeyTile& tile, float* out) {
  const int dim = rows.head_dim;
  for (const int32_t run : tile.runs) {
    for (int i = 0; i < kRunKeys; ++i, out += dim) {
      if (run < 0 || run + i >= task.num_places) {
        std::fill_n(out, dim, 0.0f);
        continue;
      }
      const void* row = rows.row(run + i);
      for (int j = 0; j < dim; j += 16) Store16(Load16Typed(row, rows.dtype, j), out + j);
    }
  }
}

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

// out[i][row] = <row i of `lines`, query row>, of kLines lines from `line` on; or, with kAdd, added to out: then
// `lines` is read down its columns. `inner`: how many products are added.
template <int kOf, bool kAdd>
HWY_INLINE void Multiply(const float* lines, size_t line_step, size_t inner_step, const float* rows, int inner,
                         float* out) {
  const DF d;
  VF sums[kLines][kOf];
  for (int i = 0; i < kLines; ++i) {
    for (int v = 0; v < kOf; ++v) {
      sums[i][v] = kAdd ? hn::Load(d, out + i * kStripRows + v * kLanes) : hn::Zero(d);
    }
  }
  for (int k = 0; k < inner; ++k) {
    VF x[kOf];
    for (int v = 0; v < kOf; ++v) x[v] = hn::Load(d, rows + k * kStripRows + v * kLanes);
    for (int i = 0; i < kLines; ++i) {
      const VF line = hn::Set(d, lines[i * line_step + k * inner_step]);
      for (int v = 0; v < kOf; ++v) sums[i][v] = hn::MulAdd(line, x[v], sums[i][v]);
    }
  }
  for (int i = 0; i < kLines; ++i) {
    for (int v = 0; v < kOf; ++v) hn::Store(sums[i][v], d, out + i * kStripRows + v * kLanes);
  }
}

// logits [kTileKeys] of a strip.
template <int kOf>
HWY_INLINE void Logits(const float* keys, int dim, const float* queries, float* logits) {
  for (int key = 0; key < kTileKeys; key += kLines) {
    Multiply<kOf, false>(keys + static_cast<size_t>(key) * dim, dim, 1, queries, dim, logits + key * kStripRows);
  }
}
// sums [dim] of a strip += values weighted.
template <int kOf>
HWY_INLINE void AddValues(const float* values, int dim, const float* weights, float* sums) {
  for (int j = 0; j < dim; j += kLines) {
    Multiply<kOf, true>(values + j, 1, dim, weights, kTileKeys, sums + static_cast<size_t>(j) * kStripRows);
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

// Logits become weights under each row's maximum, which goes up where it must. What was summed before is scaled then.
// `words`: what each lane sees; nullptr: everything.
template <int kOf>
HWY_INLINE void Weigh(const uint32_t (*words)[kStripRows], float* logits, float* most, float* total, float* sums,
                      int dim) {
  const DF d;
  const DU du;
  if (words != nullptr) {
    const VF hidden = hn::Set(d, kHidden);
    for (int v = 0; v < kOf; ++v) {
      for (int key = 0; key < kTileKeys; ++key) {
        float* at = logits + key * kStripRows + v * kLanes;
        const auto word = hn::LoadU(du, words[key / 32] + v * kLanes);
        const auto sees = hn::TestBit(word, hn::Set(du, 1u << (key % 32)));
        hn::Store(hn::IfThenElse(hn::RebindMask(d, sees), hn::Load(d, at), hidden), d, at);
      }
    }
  }
  for (int v = 0; v < kOf; ++v) {
    float* at = logits + v * kLanes;
    VF largest[4];
    for (int i = 0; i < 4; ++i) largest[i] = hn::Load(d, at + i * kStripRows);
    for (int key = 4; key < kTileKeys; key += 4) {
      for (int i = 0; i < 4; ++i) largest[i] = hn::Max(largest[i], hn::Load(d, at + (key + i) * kStripRows));
    }
    const VF peak = hn::Max(hn::Max(largest[0], largest[1]), hn::Max(largest[2], largest[3]));
    const VF before = hn::Load(d, most + v * kLanes);
    const auto raised = hn::Gt(peak, hn::Add(before, hn::Set(d, kLazyExponent)));
    const VF now = hn::IfThenElse(raised, peak, before);
    VF sum = hn::Load(d, total + v * kLanes);
    if (!hn::AllFalse(d, raised)) {
      const VF scale = Exp2(hn::Sub(before, now));
      hn::Store(now, d, most + v * kLanes);
      sum = hn::Mul(sum, scale);
      for (int j = 0; j < (sums == nullptr ? 0 : dim); ++j) {
        float* of = sums + static_cast<size_t>(j) * kStripRows + v * kLanes;
        hn::Store(hn::Mul(hn::Load(d, of), scale), d, of);
      }
    }
    for (int key = 0; key < kTileKeys; ++key) {
      const VF weight = Exp2(hn::Sub(hn::Load(d, at + key * kStripRows), now));
      hn::Store(weight, d, at + key * kStripRows);
      sum = hn::Add(sum, weight);
    }
    hn::Store(sum, d, total + v * kLanes);
  }
}

// Rows [first, first + kStripRows) of a task, as far as there are.
struct Strip {
  int first, count, vecs;
};
HWY_INLINE Strip StripOf(const BlockTask& task, int s) {
  const int first = s * kStripRows, count = std::min(kStripRows, task.num_rows - first);
  return {first, count, (count + kLanes - 1) / kLanes};
}

// What the strip's lanes see of a tile. `all`: each sees all of it; `none`: nobody anything.
struct Sight {
  uint32_t words[2][kStripRows];
  bool all, none;
};
HWY_INLINE void Look(const BlockTask& task, const KeyTile& tile, const Strip& strip, Sight* sight) {
  const uint64_t present = PresentKeys(tile, task.num_places);
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

// Queries times the scale, in powers of two, rows in lanes.
void PackQueries(const BlockTask& task, int strips, Workspace* w) {
  const int dim = task.keys.head_dim;
  const float scale = task.scale * kLog2E;
  std::fill_n(w->queries, static_cast<size_t>(strips) * kStripRows * dim, 0.0f);
  for (int r = 0; r < task.num_rows; ++r) {
    float* to = w->queries + static_cast<size_t>(r / kStripRows) * kStripRows * dim + r % kStripRows;
    for (int j = 0; j < dim; ++j) to[static_cast<size_t>(j) * kStripRows] = task.queries[r][j] * scale;
  }
  std::fill_n(w->most, strips * kStripRows, kNothingSeen);
  std::fill_n(w->total, strips * kStripRows, 0.0f);
}

template <int kOf>
void AttendStrip(const Sight& sight, int dim, float cap, const Workspace& w, int s) {
  const size_t at = static_cast<size_t>(s) * kStripRows;
  Logits<kOf>(w.keys, dim, w.queries + at * dim, w.logits);
  if (cap > 0) Cap<kOf>(cap, w.logits);
  Weigh<kOf>(sight.all ? nullptr : sight.words, w.logits, w.most + at, w.total + at, w.sums + at * dim, dim);
  AddValues<kOf>(w.values, dim, w.logits, w.sums + at * dim);
}

void AttendBlockImpl(const BlockTask& task, float* const* outputs, float* log_sum_exp) {
  static_assert(kVecs == 3);
  static constexpr decltype(&AttendStrip<1>) kOf[] = {AttendStrip<1>, AttendStrip<2>, AttendStrip<3>};
  const int dim = task.keys.head_dim, strips = (task.num_rows + kStripRows - 1) / kStripRows;
  Workspace w(dim, strips);
  PackQueries(task, strips, &w);
  Sight sight;
  for (int64_t t = 0; t < task.num_tiles && !StopRequested(); ++t) {
    bool widened = false;
    for (int s = 0; s < strips; ++s) {
      const Strip strip = StripOf(task, s);
      Look(task, task.tiles[t], strip, &sight);
      if (sight.none) continue;
      if (!widened) {
        WidenTile(task, task.keys, task.tiles[t], w.keys);
        WidenTile(task, task.values, task.tiles[t], w.values);
        widened = true;
        if (t + 1 < task.num_tiles) {
          PrefetchTile(task, task.keys, task.tiles[t + 1]);
          PrefetchTile(task, task.values, task.tiles[t + 1]);
        }
      }
      kOf[strip.vecs - 1](sight, dim, task.softcap * kLog2E, w, s);
    }
  }
  for (int r = 0; r < task.num_rows; ++r) {
    const float total = w.total[r], share = total > 0 ? 1 / total : 0;
    const float* from = w.sums + static_cast<size_t>(r / kStripRows) * kStripRows * dim + r % kStripRows;
    for (int j = 0; j < dim; ++j) outputs[r][j] = from[static_cast<size_t>(j) * kStripRows] * share;
    if (log_sum_exp != nullptr) log_sum_exp[r] = LogSumExpOf(w.most[r], total);
  }
}

template <int kOf>
void WeighStrip(const Sight& sight, int dim, float cap, const Workspace& w, int s, float* of_runs) {
  const DF d;
  const size_t at = static_cast<size_t>(s) * kStripRows;
  Logits<kOf>(w.keys, dim, w.queries + at * dim, w.logits);
  if (cap > 0) Cap<kOf>(cap, w.logits);
  Weigh<kOf>(sight.all ? nullptr : sight.words, w.logits, w.most + at, w.total + at, nullptr, dim);
  for (int run = 0; run < kTileRuns; ++run) {
    for (int v = 0; v < kOf; ++v) {
      const float* weights = w.logits + run * kRunKeys * kStripRows + v * kLanes;
      VF sum = hn::Load(d, weights);
      for (int i = 1; i < kRunKeys; ++i) sum = hn::Add(sum, hn::Load(d, weights + i * kStripRows));
      hn::StoreU(sum, d, of_runs + run * kStripRows + v * kLanes);
    }
  }
}

void RunMassesImpl(const BlockTask& task, float* masses) {
  static constexpr decltype(&WeighStrip<1>) kOf[] = {WeighStrip<1>, WeighStrip<2>, WeighStrip<3>};
  const int dim = task.keys.head_dim;
  const DF d;
  std::fill_n(masses, task.num_tiles * kTileRuns * task.num_rows, 0.0f);
  std::vector<float> of_runs(task.num_tiles * kTileRuns * kStripRows), at_most(task.num_tiles * kStripRows);
  std::vector<uint8_t> seen(task.num_tiles);
  for (int first = 0; first < task.num_rows; first += kStripRows) {  // strip by strip: few rows are asked
    BlockTask rows = task;
    rows.queries += first;
    rows.num_rows = std::min(kStripRows, task.num_rows - first);
    Workspace w(dim, 1);
    PackQueries(rows, 1, &w);
    Sight sight;
    for (int64_t t = 0; t < task.num_tiles && !StopRequested(); ++t) {
      Strip strip = StripOf(rows, 0);
      strip.first = first;
      Look(task, task.tiles[t], strip, &sight);
      seen[t] = !sight.none;
      if (sight.none) continue;
      WidenTile(task, task.keys, task.tiles[t], w.keys);
      if (t + 1 < task.num_tiles) PrefetchTile(task, task.keys, task.tiles[t + 1]);
      kOf[strip.vecs - 1](sight, dim, task.softcap * kLog2E, w, 0, of_runs.data() + t * kTileRuns * kStripRows);
      std::copy_n(w.most, kStripRows, at_most.data() + t * kStripRows);
    }
    alignas(64) float shares[kStripRows];
    for (int64_t t = 0; t < task.num_tiles; ++t) {
      if (seen[t] == 0) continue;
      for (int v = 0; v < kVecs; ++v) {
        const VF total = hn::Load(d, w.total + v * kLanes);
        const VF before = hn::LoadU(d, at_most.data() + t * kStripRows + v * kLanes);
        const VF scale = Exp2(hn::Sub(before, hn::Load(d, w.most + v * kLanes)));
        hn::Store(hn::IfThenElseZero(hn::Gt(total, hn::Zero(d)), hn::Div(scale, total)), d, shares + v * kLanes);
      }
      for (int run = 0; run < kTileRuns; ++run) {
        const float* of_rows = of_runs.data() + (t * kTileRuns + run) * kStripRows;
        float* to = masses + (t * kTileRuns + run) * task.num_rows + first;
        for (int r = 0; r < rows.num_rows; ++r) to[r] = of_rows[r] * shares[r];
      }
    }
  }
}

}  // namespace seine::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace seine::cpu {

HWY_EXPORT(AttendBlockImpl);
HWY_EXPORT(RunMassesImpl);

void AttendBlock(const BlockTask& task, float* const* outputs, float* log_sum_exp) {
  if (ScalarForced()) return scalar::AttendBlock(task, outputs, log_sum_exp);
  HWY_DYNAMIC_DISPATCH(AttendBlockImpl)(task, outputs, log_sum_exp);
}
void RunMasses(const BlockTask& task, float* masses) {
  if (ScalarForced()) return scalar::RunMasses(task, masses);
  HWY_DYNAMIC_DISPATCH(RunMassesImpl)(task, masses);
}

}  // namespace seine::cpu
#endif  // HWY_ONCE
