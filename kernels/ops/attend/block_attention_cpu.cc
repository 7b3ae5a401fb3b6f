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
#include <type_traits>
#include <vector>

#include "kernels/cpu/amx.h"
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

// Logits, times `unit` in powers of two, become weights under each row's maximum, which goes up where it must. What was
// summed before is scaled then. `words`: what each lane sees; nullptr: everything.
template <int kOf>
HWY_INLINE void Weigh(const uint32_t (*words)[kStripRows], float unit, float* logits, float* most, float* total,
                      float* sums, int dim) {
  const DF d;
  const DU du;
  const VF units = hn::Set(d, unit);
  if (words != nullptr) {
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
  for (int v = 0; v < kOf; ++v) {
    float* at = logits + v * kLanes;
    VF largest[4];
    for (int i = 0; i < 4; ++i) largest[i] = hn::Load(d, at + i * kStripRows);
    for (int key = 4; key < kTileKeys; key += 4) {
      for (int i = 0; i < 4; ++i) largest[i] = hn::Max(largest[i], hn::Load(d, at + (key + i) * kStripRows));
    }
    const VF peak = hn::Mul(hn::Max(hn::Max(largest[0], largest[1]), hn::Max(largest[2], largest[3])), units);
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
      const VF weight = Exp2(hn::MulSub(hn::Load(d, at + key * kStripRows), units, now));
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

void Begin(int strips, Workspace* w) {
  std::fill_n(w->most, strips * kStripRows, kNothingSeen);
  std::fill_n(w->total, strips * kStripRows, 0.0f);
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

// Rows' sums over their totals.
void PutOut(const BlockTask& task, const Workspace& w, float* const* outputs) {
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

template <int kOf>
void AttendStrip(const Sight& sight, int dim, float cap, const Workspace& w, int s) {
  const size_t at = static_cast<size_t>(s) * kStripRows;
  Logits<kOf>(w.keys, dim, w.queries + at * dim, w.logits);
  if (cap > 0) Cap<kOf>(cap, w.logits);
  Weigh<kOf>(sight.all ? nullptr : sight.words, 1.0f, w.logits, w.most + at, w.total + at, w.sums + at * dim, dim);
  AddValues<kOf>(w.values, dim, w.logits, w.sums + at * dim);
}

#if HWY_ARCH_X86_64 && HWY_TARGET <= HWY_AVX3_DL

// Bfloat16 rows by tiles of AMX. Products of bfloat16 are exact in fp32, and a weight is taken as the sum of two
// bfloat16 numbers, which is 2^-17 of it off at most. Sums have another order than those above.
struct TileSpace {
  // Pairs of neighbouring keys of a strip's weights, [kTileKeys / 2][kStripRows]: the larger part, and the rest.
  struct Weights {
    uint32_t *high, *low;
  };
  std::vector<Workspace::Line> memory;
  uint16_t *keys, *values;  // [kTileKeys][head_dim], [head_dim][kTileKeys]
  uint32_t* queries;        // pairs of neighbouring coordinates, [strips][head_dim / 2][kStripRows]
  Weights weights[2];       // of strips by turns

  TileSpace(int dim, int strips) {
    const size_t tile = static_cast<size_t>(kTileKeys) * dim / 2;
    const size_t weighed = static_cast<size_t>(kTileKeys) / 2 * kStripRows;
    const size_t asked = static_cast<size_t>(strips) * dim / 2 * kStripRows;
    memory.resize((2 * tile + 4 * weighed + asked) / 16);
    auto* at = reinterpret_cast<uint32_t*>(memory.data());
    const auto take = [&](size_t count) { return at += count, at - count; };
    keys = reinterpret_cast<uint16_t*>(take(tile)), values = reinterpret_cast<uint16_t*>(take(tile));
    for (Weights& of : weights) of.high = take(weighed), of.low = take(weighed);
    queries = take(asked);
  }
};

// False, and no more is done, where a query is no bfloat16 number.
bool PackPairs(const BlockTask& task, TileSpace* space) {
  const DF d;
  const DU du;
  const int dim = task.keys.head_dim;
  auto rest = hn::Zero(du);
  for (int r = 0; r < task.num_rows; r += 4) {
    uint32_t* const to = space->queries + static_cast<size_t>(r / kStripRows) * dim / 2 * kStripRows + r % kStripRows;
    for (int j = 0; j < dim; j += 32) {
      VF v[4];
      for (int i = 0; i < 4; ++i) {
        v[i] = hn::Zero(d);
        if (r + i >= task.num_rows) continue;
        const float* const at = task.queries[r + i] + j;
        const auto first = hn::BitCast(du, hn::LoadU(d, at)), second = hn::BitCast(du, hn::LoadU(d, at + 16));
        rest = hn::Or(rest, hn::Or(first, second));
        const auto even = hn::ConcatEven(du, second, first), odd = hn::ConcatOdd(du, second, first);
        v[i] = hn::BitCast(d, hn::Or(hn::ShiftRight<16>(even), odd));
      }
      TurnFour(v);
      StoreBlocks(v, reinterpret_cast<float*>(to) + static_cast<size_t>(j) / 2 * kStripRows, kStripRows);
    }
  }
  return hn::AllTrue(du, hn::Eq(hn::And(rest, hn::Set(du, 0xFFFFu)), hn::Zero(du)));
}

void CopyKeys(const BlockTask& task, const KeyTile& tile, uint16_t* out) {
  const int dim = task.keys.head_dim;
  for (const int32_t run : tile.runs) {
    for (int i = 0; i < kRunKeys; ++i, out += dim) {
      if (run < 0 || run + i >= task.num_places) {
        std::fill_n(out, dim, uint16_t{0});
      } else {
        std::memcpy(out, task.keys.row(run + i), dim * sizeof(uint16_t));
      }
    }
  }
}

// Values with their keys in a row: pairs of neighbours, four of them turned at a time.
void TurnValues(const BlockTask& task, const KeyTile& tile, uint16_t* out) {
  static constexpr uint16_t kNothing[16] = {};
  const DF d;
  const DU du;
  const hn::Rebind<uint16_t, DU> d16;
  const int dim = task.values.head_dim;
  const uint16_t* rows[kTileKeys];
  for (int i = 0; i < kTileKeys; ++i) {
    const int32_t run = tile.runs[i / kRunKeys], place = run + i % kRunKeys;
    rows[i] = run < 0 || place >= task.num_places ? nullptr : static_cast<const uint16_t*>(task.values.row(place));
  }
  const auto load = [&](int key, int j) HWY_ATTR {
    return hn::PromoteTo(du, hn::LoadU(d16, rows[key] == nullptr ? kNothing : rows[key] + j));
  };
  for (int key = 0; key < kTileKeys; key += 8) {
    for (int j = 0; j < dim; j += 16) {
      VF v[4];
      for (int i = 0; i < 4; ++i) {
        v[i] = hn::BitCast(d, hn::Or(load(key + 2 * i, j), hn::ShiftLeft<16>(load(key + 2 * i + 1, j))));
      }
      TurnFour(v);
      StoreBlocks(v, reinterpret_cast<float*>(out + static_cast<size_t>(j) * kTileKeys + key), kTileKeys / 2);
    }
  }
}

// Splits each of a strip's weights into two bfloat16 numbers, in pairs of neighbouring keys.
template <int kOf>
HWY_INLINE void SplitWeights(const float* weights, uint32_t* high, uint32_t* low) {
  const DF d;
  const DU du;
  const auto upper = hn::Set(du, 0xFFFF0000u), half = hn::Set(du, 0x8000u);
  for (int key = 0; key < kTileKeys; key += 2) {
    for (int v = 0; v < kOf; ++v) {
      const float* at = weights + key * kStripRows + v * kLanes;
      const VF a = hn::Load(d, at), b = hn::Load(d, at + kStripRows);
      const auto a_high = hn::And(hn::BitCast(du, a), upper), b_high = hn::And(hn::BitCast(du, b), upper);
      const auto a_low = hn::Add(hn::BitCast(du, hn::Sub(a, hn::BitCast(d, a_high))), half);
      const auto b_low = hn::Add(hn::BitCast(du, hn::Sub(b, hn::BitCast(d, b_high))), half);
      const size_t to = static_cast<size_t>(key / 2) * kStripRows + v * kLanes;
      hn::Store(hn::Or(hn::ShiftRight<16>(a_high), b_high), du, high + to);
      hn::Store(hn::Or(hn::ShiftRight<16>(a_low), hn::And(b_low, upper)), du, low + to);
    }
  }
}

// Tiles 0 to 2 are sums, 3 has keys or values, 4 to 6 queries or weights.
constexpr size_t kStripBytes = kStripRows * sizeof(float);
template <int kOf, int kV = 0, typename Do>
HWY_INLINE void ForEachVec(Do act) {
  if constexpr (kV < kOf) {
    act(std::integral_constant<int, kV>());
    ForEachVec<kOf, kV + 1>(act);
  }
}

template <int kOf>
HWY_INLINE void TileLogits(const TileSpace& space, int dim, const uint32_t* queries, float* logits) {
  for (int key = 0; key < kTileKeys; key += kTileRows) {
    ForEachVec<kOf>([](auto v) { ZeroTile<v()>(); });
    for (int j = 0; j < dim; j += 32) {
      LoadTile<3>(space.keys + static_cast<size_t>(key) * dim + j, dim * sizeof(uint16_t));
      ForEachVec<kOf>([&](auto v) {
        LoadTile<4 + v()>(queries + static_cast<size_t>(j) / 2 * kStripRows + v() * kLanes, kStripBytes);
        MultiplyTiles<v(), 3, 4 + v()>();
      });
    }
    ForEachVec<kOf>([&](auto v) { StoreTile<v()>(logits + key * kStripRows + v() * kLanes, kStripBytes); });
  }
}

template <int kOf>
void AddTileValues(const TileSpace& space, const TileSpace::Weights& weights, int dim, float* sums) {
  for (int j = 0; j < dim; j += kTileRows, sums += static_cast<size_t>(kTileRows) * kStripRows) {
    ForEachVec<kOf>([&](auto v) { LoadTile<v()>(sums + v() * kLanes, kStripBytes); });
    for (int key = 0; key < kTileKeys; key += 32) {
      LoadTile<3>(space.values + static_cast<size_t>(j) * kTileKeys + key, kTileKeys * sizeof(uint16_t));
      for (const uint32_t* const part : {weights.high, weights.low}) {
        ForEachVec<kOf>([&](auto v) {
          LoadTile<4 + v()>(part + static_cast<size_t>(key) / 2 * kStripRows + v() * kLanes, kStripBytes);
          MultiplyTiles<v(), 3, 4 + v()>();
        });
      }
    }
    ForEachVec<kOf>([&](auto v) { StoreTile<v()>(sums + v() * kLanes, kStripBytes); });
  }
}

template <int kOf>
HWY_INLINE void Scale(float by, float* logits) {
  const DF d;
  const VF factor = hn::Set(d, by);
  for (int key = 0; key < kTileKeys; ++key) {
    for (int v = 0; v < kOf; ++v) {
      float* at = logits + key * kStripRows + v * kLanes;
      hn::Store(hn::Mul(hn::Load(d, at), factor), d, at);
    }
  }
}

template <int kOf>
void WeighTileStrip(const BlockTask& task, const Sight& sight, const Workspace& w, const TileSpace& space,
                    const TileSpace::Weights& weights, int s) {
  const int dim = task.keys.head_dim;
  const size_t at = static_cast<size_t>(s) * kStripRows;
  float unit = task.scale * kLog2E;
  TileLogits<kOf>(space, dim, space.queries + at * dim / 2, w.logits);
  if (task.softcap > 0) {
    Scale<kOf>(unit, w.logits);
    Cap<kOf>(task.softcap * kLog2E, w.logits);
    unit = 1;
  }
  Weigh<kOf>(sight.all ? nullptr : sight.words, unit, w.logits, w.most + at, w.total + at, w.sums + at * dim, dim);
  SplitWeights<kOf>(w.logits, weights.high, weights.low);
}

// A strip's values are added once the next strip is weighed: a tile that is loaded waits for what was stored to it.
class TileStrips {
 public:
  TileStrips(const BlockTask& task, const Workspace& w, const TileSpace& space) : task_(task), w_(w), space_(space) {}

  void Attend(const Strip& strip, const Sight& sight, int s) {
    static constexpr decltype(&WeighTileStrip<1>) kOf[] = {WeighTileStrip<1>, WeighTileStrip<2>, WeighTileStrip<3>};
    const TileSpace::Weights* const weights = &space_.weights[last_ == &space_.weights[0] ? 1 : 0];
    kOf[strip.vecs - 1](task_, sight, w_, space_, *weights, s);
    AddLast();
    last_ = weights, last_vecs_ = strip.vecs, last_strip_ = s;
  }
  void AddLast() {
    static constexpr decltype(&AddTileValues<1>) kOf[] = {AddTileValues<1>, AddTileValues<2>, AddTileValues<3>};
    if (last_ == nullptr) return;
    const int dim = task_.keys.head_dim;
    kOf[last_vecs_ - 1](space_, *last_, dim, w_.sums + static_cast<size_t>(last_strip_) * kStripRows * dim);
    last_ = nullptr;
  }

 private:
  const BlockTask& task_;
  const Workspace& w_;
  const TileSpace& space_;
  const TileSpace::Weights* last_ = nullptr;
  int last_vecs_ = 0, last_strip_ = 0;
};

#endif  // AVX3_DL

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

// Returns false, and has done nothing, where tiles of AMX cannot do it.
bool AttendByTiles(const BlockTask& task, int strips, const Workspace& w) {
#if HWY_ARCH_X86_64 && HWY_TARGET <= HWY_AVX3_DL
  const bool bfloat16 = task.keys.dtype == DType::kBFloat16 && task.values.dtype == DType::kBFloat16;
  if (!bfloat16 || task.keys.head_dim % 32 != 0 || !HasAmx()) return false;
  TileSpace space(task.keys.head_dim, strips);
  if (!PackPairs(task, &space)) return false;
  const TileScope tiles;
  TileStrips all(task, w, space);
  ForEachTile(
      task, strips,
      [&](const KeyTile& tile) {
        all.AddLast();
        CopyKeys(task, tile, space.keys);
        TurnValues(task, tile, space.values);
      },
      [&](const Strip& strip, const Sight& sight, int s) { all.Attend(strip, sight, s); });
  all.AddLast();
  return true;
#else
  (void)task, (void)strips, (void)w;
  return false;
#endif
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
  Weigh<kOf>(sight.all ? nullptr : sight.words, 1.0f, w.logits, w.most + at, w.total + at, nullptr, dim);
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
