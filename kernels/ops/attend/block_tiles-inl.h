// Blocks of rows by tiles of AMX. Per-target header.
#if defined(SEINE_KERNELS_OPS_ATTEND_BLOCK_TILES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SEINE_KERNELS_OPS_ATTEND_BLOCK_TILES_INL_H_
#undef SEINE_KERNELS_OPS_ATTEND_BLOCK_TILES_INL_H_
#else
#define SEINE_KERNELS_OPS_ATTEND_BLOCK_TILES_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/cpu/amx.h"
#include "kernels/ops/attend/block_parts-inl.h"
#include "kernels/ops/attend/block_strips-inl.h"

HWY_BEFORE_NAMESPACE();
namespace seine::cpu::HWY_NAMESPACE {

#if HWY_ARCH_X86_64 && HWY_TARGET <= HWY_AVX3_DL

constexpr size_t kStripBytes = kStripRows * sizeof(float);
template <int kOf, int kI = 0, typename Do>
HWY_INLINE void ForEach(Do act) {
  if constexpr (kI < kOf) {
    act(std::integral_constant<int, kI>());
    ForEach<kOf, kI + 1>(act);
  }
}

// Tiles 0 to 2 are sums, 4 to 6 queries or weights, and 3 and 7 by turns keys or values.
template <int kPart>
constexpr int kLeft = kPart % 2 == 0 ? 3 : 7;

// Vectors of rows: their sums += the parts of the left side times the one part of the right that is at `right`.
template <int kOf, int kParts>
HWY_INLINE void MultiplyParts(const uint16_t* left, size_t part_step, size_t row_bytes, const uint32_t* right) {
  LoadTile<kLeft<kParts - 1>>(left + (kParts - 1) * part_step, row_bytes);
  ForEach<kOf>([&](auto v) {
    LoadTile<4 + v()>(right + v() * kLanes, kStripBytes);
    MultiplyTiles<v(), kLeft<kParts - 1>, 4 + v()>();
  });
  ForEach<kParts - 1>([&](auto i) {
    constexpr int kPart = kParts - 2 - i();
    LoadTile<kLeft<kPart>>(left + kPart * part_step, row_bytes);
    ForEach<kOf>([&](auto v) { MultiplyTiles<v(), kLeft<kPart>, 4 + v()>(); });
  });
}

// Logits of a strip's rows and kTileRows keys from `key` on. Of parts i and j those are multiplied for which i + j is
// less than kMostParts, the smaller ones first, so that few sums are rounded at their full size.
template <int kOf, int kKeyParts, int kQueryParts>
void MultiplyKeys(const uint16_t* keys, int dim, const uint32_t* queries, int key, float* logits) {
  const size_t tile = static_cast<size_t>(kTileKeys) * dim, step = static_cast<size_t>(dim) / 2 * kStripRows;
  ForEach<kOf>([](auto v) { ZeroTile<v()>(); });
  ForEach<kQueryParts>([&](auto i) {
    constexpr int kAsked = kQueryParts - 1 - i();
    for (int j = 0; j < dim; j += 32) {
      MultiplyParts<kOf, std::min(kKeyParts, kMostParts - kAsked)>(
          keys + static_cast<size_t>(key) * dim + j, tile, dim * sizeof(uint16_t),
          queries + kAsked * step + static_cast<size_t>(j) / 2 * kStripRows);
    }
  });
  ForEach<kOf>([&](auto v) { StoreTile<v()>(logits + key * kStripRows + v() * kLanes, kStripBytes); });
}

// A strip's sums of kTileRows coordinates from j on, with the tile's values weighted. The tile's own sum comes first:
// few are then rounded at their full size.
template <int kOf, int kParts, int kWeightParts>
void AddValuesAt(const uint16_t* values, int dim, const TileSpace::Weights& weights, int j, float* of_tile,
                 float* sums) {
  const DF d;
  const size_t tile = static_cast<size_t>(kTileKeys) * dim;
  ForEach<kOf>([](auto v) { ZeroTile<v()>(); });
  for (int key = 0; key < kTileKeys; key += 32) {
    ForEach<kWeightParts>([&](auto i) {
      constexpr int kWeight = kWeightParts - 1 - i();
      MultiplyParts<kOf, std::min(kParts, kMostParts - kWeight)>(
          values + static_cast<size_t>(j) * kTileKeys + key, tile, kTileKeys * sizeof(uint16_t),
          weights.parts[kWeight] + static_cast<size_t>(key) / 2 * kStripRows);
    });
  }
  ForEach<kOf>([&](auto v) { StoreTile<v()>(of_tile + v() * kLanes, kStripBytes); });
  sums += static_cast<size_t>(j) * kStripRows;
  for (int i = 0; i < kTileRows; ++i) {
    for (int v = 0; v < kOf; ++v) {
      float* const to = sums + i * kStripRows + v * kLanes;
      hn::Store(hn::Add(hn::Load(d, to), hn::Load(d, of_tile + i * kStripRows + v * kLanes)), d, to);
    }
  }
}

using MultiplyKeysOf = decltype(&MultiplyKeys<1, 1, 1>);
using AddValuesOf = decltype(&AddValuesAt<1, 1, 2>);
template <int kOf>
HWY_INLINE MultiplyKeysOf KeysBy(int key_parts, int query_parts) {
  if (key_parts == 1) return query_parts == 1 ? MultiplyKeys<kOf, 1, 1> : MultiplyKeys<kOf, 1, 3>;
  if (key_parts == 2) return query_parts == 1 ? MultiplyKeys<kOf, 2, 1> : MultiplyKeys<kOf, 2, 3>;
  return query_parts == 1 ? MultiplyKeys<kOf, 3, 1> : MultiplyKeys<kOf, 3, 3>;
}
template <int kOf>
HWY_INLINE AddValuesOf ValuesBy(int parts, int weight_parts) {
  if (parts == 1) return weight_parts == 2 ? AddValuesAt<kOf, 1, 2> : AddValuesAt<kOf, 1, 3>;
  return parts == 2 ? AddValuesAt<kOf, 2, 3> : AddValuesAt<kOf, 3, 3>;
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
      : task_(task),
        w_(w),
        space_(space),
        dim_(task.keys.head_dim),
        keys_by_{KeysBy<1>(space.key_parts, space.query_parts), KeysBy<2>(space.key_parts, space.query_parts),
                 KeysBy<3>(space.key_parts, space.query_parts)},
        values_by_{ValuesBy<1>(space.value_parts, space.weight_parts),
                   ValuesBy<2>(space.value_parts, space.weight_parts),
                   ValuesBy<3>(space.value_parts, space.weight_parts)} {}

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
  static constexpr int kPieces = 8,
                       kPieceKeys = kTileKeys / kPieces;  // of a tile's weights
  struct Turn {
    int s = 0, vecs = 0;       // 0: none
    int tile = 0, buffer = 0;  // of keys; of logits, and of weights
  };

  // Weighs what is now; the logits are those of the turn before.
  void Step(const Turn& next) {
    static constexpr decltype(&TileStrips::Weigh<1, 2>) kOf[][3] = {
        {&TileStrips::Weigh<1, 2>, &TileStrips::Weigh<2, 2>, &TileStrips::Weigh<3, 2>},
        {&TileStrips::Weigh<1, 3>, &TileStrips::Weigh<2, 3>, &TileStrips::Weigh<3, 3>}};
    (this->*kOf[space_.weight_parts - 2][now_.vecs - 1])(next);
    last_ = now_;
  }

  // Keys of the turn that is next.
  void Multiply(const Turn& next, int key) const {
    const uint32_t* const queries = space_.queries + next.s * space_.query_parts * space_.query_step;
    const uint16_t* const keys = space_.keys + next.tile * space_.key_parts * space_.tile;
    keys_by_[next.vecs - 1](keys, dim_, queries, key, space_.logits[next.buffer]);
  }
  // Values of the turn that was last, whose weights are complete.
  void Add(int j) const {
    if (last_.vecs == 0) return;
    const uint16_t* const values = space_.values + last_.tile * space_.value_parts * space_.tile;
    values_by_[last_.vecs - 1](values, dim_, space_.weights[last_.buffer], j, space_.of_tile,
                               w_.sums + static_cast<size_t>(last_.s) * kStripRows * dim_);
  }

  void AddAll() {
    for (int j = 0; j < dim_; j += kTileRows) Add(j);
    last_ = {};
  }

  template <int kOf, int kWeightParts>
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
          const size_t to = static_cast<size_t>(key) / 2 * kStripRows + v * kLanes;
          sums[v] = hn::Add(sums[v], hn::Add(a, b));
          SplitPair<kWeightParts>(a, b, weights.parts, to);
        }
      }
    }
    for (int v = 0; v < kOf; ++v) hn::Store(sums[v], d, w_.total + at + v * kLanes);
  }

  const BlockTask& task_;
  const Workspace& w_;
  const TileSpace& space_;
  const int dim_;
  const MultiplyKeysOf keys_by_[3];  // of one vector of rows, of two and of three
  const AddValuesOf values_by_[3];
  Turn now_, last_;  // whose logits are there; whose weights are
  Sight sight_;      // of now_
};

#endif  // AVX3_DL

// Returns false, and has done nothing, where tiles of AMX cannot do it.
HWY_INLINE bool AttendByTiles(const BlockTask& task, int strips, const Workspace& w) {
#if HWY_ARCH_X86_64 && HWY_TARGET <= HWY_AVX3_DL
  if (task.keys.head_dim % 32 != 0 || !HasAmx()) return false;
  TileSpace space(task, strips);
  PackPairs(task, space);
  const TileScope tiles;
  TileStrips all(task, w, space);
  const int at_once = space.tiles_at_once;
  Sight sight;
  for (int64_t first = 0; first < task.num_tiles && !StopRequested(); first += at_once) {
    const auto count = static_cast<int>(std::min<int64_t>(at_once, task.num_tiles - first));
    bool packed[TileSpace::kMostTiles] = {};
    for (int s = 0; s < strips; ++s) {
      const Strip strip = StripOf(task, s);
      for (int t = 0; t < count; ++t) {
        const KeyTile& tile = task.tiles[first + t];
        Look(task, tile, strip, &sight);
        if (sight.none) continue;
        if (!packed[t]) {
          packed[t] = true;
          PackKeys(task, tile, space, space.keys + t * space.key_parts * space.tile);
          TurnValues(task, tile, space, space.values + t * space.value_parts * space.tile);
        }
        all.Attend(strip, sight, s, t);
      }
      for (int64_t ahead = first + at_once + s; ahead < std::min(first + 2 * at_once, task.num_tiles);
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
