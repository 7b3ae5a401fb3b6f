// Blocks of bfloat16 rows by tiles of AMX. Per-target header.
#if defined(SEINE_KERNELS_OPS_ATTEND_BLOCK_TILES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SEINE_KERNELS_OPS_ATTEND_BLOCK_TILES_INL_H_
#undef SEINE_KERNELS_OPS_ATTEND_BLOCK_TILES_INL_H_
#else
#define SEINE_KERNELS_OPS_ATTEND_BLOCK_TILES_INL_H_
#endif

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

// Returns false, and has done nothing, where tiles of AMX cannot do it.
HWY_INLINE bool AttendByTiles(const BlockTask& task, int strips, const Workspace& w) {
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

}  // namespace seine::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
