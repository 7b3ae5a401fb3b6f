// Attention of blocks of query rows, for every Highway target. Rows of queries lie in lanes: logits, weights and sums
// of a strip of rows are vectors over rows, keys and values are broadcast, and no sum goes across lanes.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/ops/attend/block_attention_cpu.cc"
#include "hwy/foreach_target.h"
// clang-format off
#include "hwy/highway.h"
#include "kernels/cpu/simd-inl.h"
#include "kernels/ops/attend/block_strips-inl.h"
#include "kernels/ops/attend/block_tiles-inl.h"
// clang-format on
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include "kernels/cpu/targets.h"
#include "kernels/ops/attend/block_attention.h"
#include "kernels/ops/attend/block_softmax.h"
#include "kernels/stop.h"

HWY_BEFORE_NAMESPACE();
namespace seine::cpu::HWY_NAMESPACE {

// A strip's sums stay in registers: three vectors of rows by as many keys, or coordinates, as there is room for.
constexpr int kLines = HWY_MAX_BYTES >= 64 || HWY_ARCH_ARM_A64 ? 8 : 4;

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

// Logits, times `unit` in powers of two, become weights under each row's maximum. `words`: what each lane sees;
// nullptr: everything.
template <int kOf>
HWY_INLINE void Weigh(const uint32_t (*words)[2][kStripRows], float unit, float* logits, float* most, float* total,
                      float* sums, int dim) {
  const DF d;
  const VF units = hn::Set(d, unit);
  if (words != nullptr) Hide<kOf>(*words, unit, logits);
  for (int v = 0; v < kOf; ++v) {
    float* at = logits + v * kLanes;
    const VF now = Raise(at, units, most + v * kLanes, total + v * kLanes,
                         sums == nullptr ? nullptr : sums + v * kLanes, dim, [] {});
    VF sum = hn::Load(d, total + v * kLanes);
    for (int key = 0; key < kTileKeys; ++key) {
      const VF weight = Exp2(hn::MulSub(hn::Load(d, at + key * kStripRows), units, now));
      hn::Store(weight, d, at + key * kStripRows);
      sum = hn::Add(sum, weight);
    }
    hn::Store(sum, d, total + v * kLanes);
  }
}

// Queries times the scale, in powers of two, rows in lanes. Lanes without a row have zeros, as the workspace has.
void PackQueries(const BlockTask& task, Workspace* w) {
  const DF d;
  const int dim = task.keys.head_dim;
  const VF scale = hn::Set(d, task.scale * kLog2E);
  for (int r = 0; r < task.num_rows; r += 4) {
    float* const to = w->queries + static_cast<size_t>(r / kStripRows) * kStripRows * dim + r % kStripRows;
    for (int j = 0; j < dim; j += kLanes) {
      VF v[4];
      for (int i = 0; i < 4; ++i) {
        v[i] = r + i < task.num_rows ? hn::Mul(hn::LoadU(d, task.queries[r + i] + j), scale) : hn::Zero(d);
      }
      TurnFour(v);
      StoreBlocks(v, to + static_cast<size_t>(j) * kStripRows, kStripRows);
    }
  }
}

template <int kOf>
void AttendStrip(const Sight& sight, int dim, float cap, const Workspace& w, int s) {
  const size_t at = static_cast<size_t>(s) * kStripRows;
  Logits<kOf>(w.keys, dim, w.queries + at * dim, w.logits);
  if (cap > 0) Cap<kOf>(cap, w.logits);
  Weigh<kOf>(sight.all ? nullptr : &sight.words, 1.0f, w.logits, w.most + at, w.total + at, w.sums + at * dim, dim);
  AddValues<kOf>(w.values, dim, w.logits, w.sums + at * dim);
}

void AttendBlockImpl(const BlockTask& task, float* const* outputs, float* log_sum_exp) {
  static_assert(kVecs == 3);
  static constexpr decltype(&AttendStrip<1>) kOf[] = {AttendStrip<1>, AttendStrip<2>, AttendStrip<3>};
  const int dim = task.keys.head_dim, strips = (task.num_rows + kStripRows - 1) / kStripRows;
  Workspace w(dim, strips);
  Begin(strips, &w);
  if (!AttendByTiles(task, strips, w)) {
    PackQueries(task, &w);
    ForEachTile(
        task, strips,
        [&](const KeyTile& tile) {
          WidenTile(task, task.keys, tile, w.keys);
          WidenTile(task, task.values, tile, w.values);
        },
        [&](const Strip& strip, const Sight& sight, int s) {
          kOf[strip.vecs - 1](sight, dim, task.softcap * kLog2E, w, s);
        });
  }
  PutOut(task, w, outputs);
  for (int r = 0; r < task.num_rows && log_sum_exp != nullptr; ++r) log_sum_exp[r] = LogSumExpOf(w.most[r], w.total[r]);
}

template <int kOf>
void WeighStrip(const Sight& sight, int dim, float cap, const Workspace& w, int s, float* of_runs) {
  const DF d;
  const size_t at = static_cast<size_t>(s) * kStripRows;
  Logits<kOf>(w.keys, dim, w.queries + at * dim, w.logits);
  if (cap > 0) Cap<kOf>(cap, w.logits);
  Weigh<kOf>(sight.all ? nullptr : &sight.words, 1.0f, w.logits, w.most + at, w.total + at, nullptr, dim);
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
    Begin(1, &w);
    PackQueries(rows, &w);
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
