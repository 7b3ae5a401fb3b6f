// Blocks of bfloat16 rows by tiles of AMX. Per-target header.
#if defined(SEINE_KERNELS_OPS_ATTEND_BLOCK_TILES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SEINE_KERNELS_OPS_ATTEND_BLOCK_TILES_INL_H_
#undef SEINE_KERNELS_OPS_ATTEND_BLOCK_TILES_INL_H_
#else
#define SEINE_KERNELS_OPS_ATTEND_BLOCK_TILES_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include "kernels/cpu/amx.h"
#include "kernels/ops/attend/block_strips-inl.h"

HWY_BEFORE_NAMESPACE();
namespace seine::cpu::HWY_NAMESPACE {

#if HWY_ARCH_X86_64 && HWY_TARGET <= HWY_AVX3_DL

// Bfloat16 rows by tiles of AMX. Products of bfloat16 are exact in fp32, and a weight is taken as the sum of two
// bfloat16 numbers, which is 2^-17 of it off at most. Sums have another order than those of vectors.
constexpr int kTilesAtOnce = 8;  // of keys, that a strip attends one behind another: its sums stay near
struct TileSpace {
  // Pairs of neighbouring keys of a strip's weights, [kTileKeys / 2][kStripRows]: the larger part, and the rest.
  struct Weights {
    uint32_t *high, *low;
  };
  std::vector<Workspace::Line> memory;
  uint16_t *keys, *values;  // [kTilesAtOnce][kTileKeys][head_dim], [kTilesAtOnce][head_dim][kTileKeys]
  uint32_t* queries;        // pairs of neighbouring coordinates, [strips][head_dim / 2][kStripRows]
  float* logits[2];         // [kTileKeys][kStripRows], of strips by turns
  Weights weights[2];       // the same

  TileSpace(int dim, int strips) {
    const size_t tiles = static_cast<size_t>(kTilesAtOnce) * kTileKeys * dim / 2;
    const size_t weighed = static_cast<size_t>(kTileKeys) / 2 * kStripRows;
    const size_t asked = static_cast<size_t>(strips) * dim / 2 * kStripRows;
    memory.resize((2 * tiles + 8 * weighed + asked) / 16);
    auto* at = reinterpret_cast<uint32_t*>(memory.data());
    const auto take = [&](size_t count) { return at += count, at - count; };
    keys = reinterpret_cast<uint16_t*>(take(tiles)), values = reinterpret_cast<uint16_t*>(take(tiles));
    for (Weights& of : weights) of.high = take(weighed), of.low = take(weighed);
    for (float*& of : logits) of = reinterpret_cast<float*>(take(2 * weighed));
    queries = take(asked);
  }
};

// False, and no more is done, where a query is no bfloat16 number.
HWY_INLINE bool PackPairs(const BlockTask& task, TileSpace* space) {
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

HWY_INLINE void CopyKeys(const BlockTask& task, const KeyTile& tile, uint16_t* out) {
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
HWY_INLINE void TurnValues(const BlockTask& task, const KeyTile& tile, uint16_t* out) {
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

// Splits two neighbouring keys' weights into two bfloat16 numbers each, in pairs: the larger parts, and the rest.
HWY_INLINE void SplitPair(VF a, VF b, uint32_t* high, uint32_t* low) {
  const DF d;
  const DU du;
  const auto upper = hn::Set(du, 0xFFFF0000u), half = hn::Set(du, 0x8000u);
  const auto a_high = hn::And(hn::BitCast(du, a), upper), b_high = hn::And(hn::BitCast(du, b), upper);
  const auto a_low = hn::Add(hn::BitCast(du, hn::Sub(a, hn::BitCast(d, a_high))), half);
  const auto b_low = hn::Add(hn::BitCast(du, hn::Sub(b, hn::BitCast(d, b_high))), half);
  hn::Store(hn::Or(hn::ShiftRight<16>(a_high), b_high), du, high);
  hn::Store(hn::Or(hn::ShiftRight<16>(a_low), hn::And(b_low, upper)), du, low);
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

// Logits of a strip's rows and kTileRows keys from `key` on.
template <int kOf>
void MultiplyKeys(const uint16_t* keys, int dim, const uint32_t* queries, int key, float* logits) {
  ForEachVec<kOf>([](auto v) { ZeroTile<v()>(); });
  for (int j = 0; j < dim; j += 32) {
    LoadTile<3>(keys + static_cast<size_t>(key) * dim + j, dim * sizeof(uint16_t));
    ForEachVec<kOf>([&](auto v) {
      LoadTile<4 + v()>(queries + static_cast<size_t>(j) / 2 * kStripRows + v() * kLanes, kStripBytes);
      MultiplyTiles<v(), 3, 4 + v()>();
    });
  }
  ForEachVec<kOf>([&](auto v) { StoreTile<v()>(logits + key * kStripRows + v() * kLanes, kStripBytes); });
}

// A strip's sums of kTileRows coordinates from j on, with the tile's values weighted.
template <int kOf>
void AddValuesAt(const uint16_t* values, const TileSpace::Weights& weights, int j, float* sums) {
  sums += static_cast<size_t>(j) * kStripRows;
  ForEachVec<kOf>([&](auto v) { LoadTile<v()>(sums + v() * kLanes, kStripBytes); });
  for (int key = 0; key < kTileKeys; key += 32) {
    LoadTile<3>(values + static_cast<size_t>(j) * kTileKeys + key, kTileKeys * sizeof(uint16_t));
    for (const uint32_t* const part : {weights.high, weights.low}) {
      ForEachVec<kOf>([&](auto v) {
        LoadTile<4 + v()>(part + static_cast<size_t>(key) / 2 * kStripRows + v() * kLanes, kStripBytes);
        MultiplyTiles<v(), 3, 4 + v()>();
      });
    }
  }
  ForEachVec<kOf>([&](auto v) { StoreTile<v()>(sums + v() * kLanes, kStripBytes); });
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

// Goes from turn to turn, a strip and a tile each: while one's logits become weights, which takes vectors, tiles
// multiply the next one's keys and the last one's values. So nothing waits for a tile, and no tile for what was just
// stored to it.
class TileStrips {
 public:
  TileStrips(const BlockTask& task, const Workspace& w, const TileSpace& space)
      : task_(task), w_(w), space_(space), dim_(task.keys.head_dim), tile_(static_cast<size_t>(kTileKeys) * dim_) {}

  // The strip attends a tile that `space` has until Finish.
  void Attend(const Strip& strip, const Sight& sight, int s, int tile) {
    const Turn next{s, strip.vecs, tile, 1 - now_.buffer};
    if (now_.vecs == 0) {
      for (int key = 0; key < kTileKeys; key += kTileRows) Multiply(next, key);
    } else {
      Step(next);
    }
    now_ = next;
    sight_ = sight;
  }
  void Finish() {
    if (now_.vecs != 0) Step({});
    now_ = {};
    AddAll();
  }

 private:
  static constexpr int kPieces = 8, kPieceKeys = kTileKeys / kPieces;  // of a tile's weights
  struct Turn {
    int s = 0, vecs = 0;       // 0: none
    int tile = 0, buffer = 0;  // of keys; of logits, and of weights
  };

  // Weighs what is now; the logits are those of the turn before.
  void Step(const Turn& next) {
    static constexpr decltype(&TileStrips::Weigh<1>) kOf[] = {&TileStrips::Weigh<1>, &TileStrips::Weigh<2>,
                                                              &TileStrips::Weigh<3>};
    (this->*kOf[now_.vecs - 1])(next);
    last_ = now_;
  }

  // Keys of the turn that is next.
  void Multiply(const Turn& next, int key) const {
    static constexpr decltype(&MultiplyKeys<1>) kOf[] = {MultiplyKeys<1>, MultiplyKeys<2>, MultiplyKeys<3>};
    const uint32_t* const queries = space_.queries + static_cast<size_t>(next.s) * kStripRows * dim_ / 2;
    kOf[next.vecs - 1](space_.keys + next.tile * tile_, dim_, queries, key, space_.logits[next.buffer]);
  }
  // Values of the turn that was last, whose weights are complete.
  void Add(int j) const {
    static constexpr decltype(&AddValuesAt<1>) kOf[] = {AddValuesAt<1>, AddValuesAt<2>, AddValuesAt<3>};
    if (last_.vecs == 0) return;
    kOf[last_.vecs - 1](space_.values + last_.tile * tile_, space_.weights[last_.buffer], j,
                        w_.sums + static_cast<size_t>(last_.s) * kStripRows * dim_);
  }

  void AddAll() {
    for (int j = 0; j < dim_; j += kTileRows) Add(j);
    last_ = {};
  }

  template <int kOf>
  void Weigh(const Turn& next) {
    const DF d;
    const size_t at = static_cast<size_t>(now_.s) * kStripRows;
    float* const logits = space_.logits[now_.buffer];
    const TileSpace::Weights& weights = space_.weights[now_.buffer];
    float unit = task_.scale * kLog2E;
    if (task_.softcap > 0) {
      Scale<kOf>(unit, logits);
      Cap<kOf>(task_.softcap * kLog2E, logits);
      unit = 1;
    }
    if (!sight_.all) Hide<kOf>(sight_.words, unit, logits);
    const VF units = hn::Set(d, unit);
    VF now[kOf], sums[kOf];
    for (int v = 0; v < kOf; ++v) {
      float* const total = w_.total + at + v * kLanes;
      now[v] = Raise(logits + v * kLanes, units, w_.most + at + v * kLanes, total, w_.sums + at * dim_ + v * kLanes,
                     dim_, [&] { AddAll(); });
      sums[v] = hn::Load(d, total);
    }
    for (int piece = 0; piece < kPieces; ++piece) {
      if (piece % 2 == 0 && next.vecs != 0) Multiply(next, piece * kPieceKeys);
      const int tiles = dim_ / kTileRows;
      for (int t = tiles * piece / kPieces; t < tiles * (piece + 1) / kPieces; ++t) Add(t * kTileRows);
      for (int key = piece * kPieceKeys; key < (piece + 1) * kPieceKeys; key += 2) {
        for (int v = 0; v < kOf; ++v) {
          const float* const of = logits + key * kStripRows + v * kLanes;
          const VF a = Exp2(hn::MulSub(hn::Load(d, of), units, now[v]));
          const VF b = Exp2(hn::MulSub(hn::Load(d, of + kStripRows), units, now[v]));
          sums[v] = hn::Add(sums[v], hn::Add(a, b));
          const size_t to = static_cast<size_t>(key) / 2 * kStripRows + v * kLanes;
          SplitPair(a, b, weights.high + to, weights.low + to);
        }
      }
    }
    for (int v = 0; v < kOf; ++v) hn::Store(sums[v], d, w_.total + at + v * kLanes);
  }

  const BlockTask& task_;
  const Workspace& w_;
  const TileSpace& space_;
  const int dim_;
  const size_t tile_;  // numbers of a tile of keys, or of values
  Turn now_, last_;    // whose logits are there; whose weights are
  Sight sight_;        // of now_
};

#endif  // AVX3_DL

// Returns false, and has done nothing, where tiles of AMX cannot do it.
HWY_INLINE bool AttendByTiles(const BlockTask& task, int strips, const Workspace& w) {
#if HWY_ARCH_X86_64 && HWY_TARGET <= HWY_AVX3_DL
  const bool bfloat16 = task.keys.dtype == DType::kBFloat16 && task.values.dtype == DType::kBFloat16;
  if (!bfloat16 || task.keys.head_dim % 32 != 0 || !HasAmx()) return false;
  TileSpace space(task.keys.head_dim, strips);
  if (!PackPairs(task, &space)) return false;
  const TileScope tiles;
  TileStrips all(task, w, space);
  const size_t of_tile = static_cast<size_t>(kTileKeys) * task.keys.head_dim;
  Sight sight;
  for (int64_t first = 0; first < task.num_tiles && !StopRequested(); first += kTilesAtOnce) {
    const auto count = static_cast<int>(std::min<int64_t>(kTilesAtOnce, task.num_tiles - first));
    bool packed[kTilesAtOnce] = {};
    for (int s = 0; s < strips; ++s) {
      const Strip strip = StripOf(task, s);
      for (int t = 0; t < count; ++t) {
        const KeyTile& tile = task.tiles[first + t];
        Look(task, tile, strip, &sight);
        if (sight.none) continue;
        if (!packed[t]) {
          packed[t] = true;
          CopyKeys(task, tile, space.keys + t * of_tile);
          TurnValues(task, tile, space.values + t * of_tile);
        }
        all.Attend(strip, sight, s, t);
      }
      for (int64_t ahead = first + kTilesAtOnce + s; ahead < std::min(first + 2 * kTilesAtOnce, task.num_tiles);
           ahead += strips) {
        PrefetchTile(task, task.keys, task.tiles[ahead]);
        PrefetchTile(task, task.values, task.tiles[ahead]);
      }
    }
    all.Finish();
  }
  return true;
#else
  (void)task, (void)strips, (void)w;
  return false;
#endif
}

}  // namespace seine::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
