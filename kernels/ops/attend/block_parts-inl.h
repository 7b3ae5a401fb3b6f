// Numbers of blocks' rows as sums of bfloat16 numbers, which tiles of AMX multiply. Per-target header.
#if defined(SEINE_KERNELS_OPS_ATTEND_BLOCK_PARTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SEINE_KERNELS_OPS_ATTEND_BLOCK_PARTS_INL_H_
#undef SEINE_KERNELS_OPS_ATTEND_BLOCK_PARTS_INL_H_
#else
#define SEINE_KERNELS_OPS_ATTEND_BLOCK_PARTS_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>

#include "kernels/cpu/amx.h"
#include "kernels/ops/attend/block_strips-inl.h"

#if HWY_ARCH_X86_64 && HWY_TARGET <= HWY_AVX3_DL
HWY_BEFORE_NAMESPACE();
namespace seine::cpu::HWY_NAMESPACE {

// A number is the sum of bfloat16 numbers, whose products are exact in fp32: three hold all of an fp32 number, two of a
// half. Products below 2^-20 of a whole one are left out, so that logits are as near as fp32's own. A weight has
// three parts too, or two beside keys, queries and values of one.
constexpr int kMostParts = 3;
HWY_INLINE int PartsOf(DType dtype) {
  return dtype == DType::kBFloat16 ? 1 : dtype == DType::kFloat16 ? 2 : kMostParts;
}

// The first of a number's bfloat16 numbers, in the upper half of each lane; *x becomes what is left.
HWY_INLINE hn::VFromD<DU> TakePart(VF* x) {
  const DF d;
  const DU du;
  const auto part = hn::And(hn::BitCast(du, *x), hn::Set(du, 0xFFFF0000u));
  *x = hn::Sub(*x, hn::BitCast(d, part));
  return part;
}

// Lanes of `even` and `odd`, both in the upper half, become pairs.
HWY_INLINE VF Pair(hn::VFromD<DU> even, hn::VFromD<DU> odd) {
  return hn::BitCast(DF(), hn::Or(hn::ShiftRight<16>(even), odd));
}

// How many parts queries need: as bfloat16 numbers one.
HWY_INLINE int QueryPartsOf(const BlockTask& task) {
  const DF d;
  const DU du;
  auto bits = hn::Zero(du);
  for (int r = 0; r < task.num_rows; ++r) {
    for (int j = 0; j < task.keys.head_dim; j += kLanes) {
      bits = hn::Or(bits, hn::BitCast(du, hn::LoadU(d, task.queries[r] + j)));
    }
  }
  return hn::AllTrue(du, hn::Eq(hn::And(bits, hn::Set(du, 0xFFFFu)), hn::Zero(du))) ? 1 : kMostParts;
}

struct TileSpace {
  // Parts of a strip's weights, each of pairs of neighbouring keys, [kTileKeys / 2][kStripRows].
  struct Weights {
    uint32_t* parts[kMostParts];
  };
  static constexpr int kMostTiles = 8;  // of keys, that a strip attends one behind another: its sums stay near
  const int key_parts, value_parts, query_parts, weight_parts;
  const int tiles_at_once;  // of several parts fewer, so that they stay near as well
  const size_t tile;        // numbers of a part
  const size_t query_step;  // pairs of a part of a strip's queries
  uint16_t *keys, *values;  // [tiles_at_once][parts][kTileKeys][head_dim], [..][parts][head_dim][kTileKeys]
  uint32_t* queries;        // pairs of neighbouring coordinates, [strips][parts][head_dim / 2][kStripRows]
  float* of_tile;           // [kTileRows][kStripRows]
  float* logits[2];         // [kTileKeys][kStripRows], of strips by turns
  Weights weights[2];       // the same

  TileSpace(const BlockTask& task, int strips)
      : key_parts(PartsOf(task.keys.dtype)),
        value_parts(PartsOf(task.values.dtype)),
        query_parts(QueryPartsOf(task)),
        weight_parts(query_parts == 1 && value_parts == 1 ? 2 : kMostParts),
        tiles_at_once(2 * kMostTiles / (key_parts + value_parts)),
        tile(static_cast<size_t>(kTileKeys) * task.keys.head_dim),
        query_step(static_cast<size_t>(task.keys.head_dim) / 2 * kStripRows) {
    const size_t of_keys = tiles_at_once * key_parts * tile / 2, of_values = tiles_at_once * value_parts * tile / 2;
    const size_t weighed = static_cast<size_t>(kTileKeys) / 2 * kStripRows;
    const size_t asked = strips * query_parts * query_step, sums = kTileRows * kStripRows;
    // A thread keeps it, for pages that are new cost as much as half a block.
    static thread_local std::unique_ptr<Workspace::Line[]> memory;
    static thread_local size_t held = 0;
    const size_t lines = (of_keys + of_values + 10 * weighed + asked + sums) / 16;
    if (held < lines) memory.reset(new Workspace::Line[lines]), held = lines;
    auto* at = reinterpret_cast<uint32_t*>(memory.get());
    const auto take = [&](size_t count) { return at += count, at - count; };
    keys = reinterpret_cast<uint16_t*>(take(of_keys)), values = reinterpret_cast<uint16_t*>(take(of_values));
    for (Weights& of : weights) {
      for (uint32_t*& part : of.parts) part = take(weighed);
    }
    for (float*& of : logits) of = reinterpret_cast<float*>(take(2 * weighed));
    queries = take(asked), of_tile = reinterpret_cast<float*>(take(sums));
  }
};

// Lanes of a vector without a row get zeros.
HWY_INLINE void PackPairs(const BlockTask& task, const TileSpace& space) {
  const DF d;
  const DU du;
  const int dim = task.keys.head_dim, lanes = (task.num_rows + kLanes - 1) / kLanes * kLanes;
  for (int r = 0; r < lanes; r += 4) {
    uint32_t* const to = space.queries + r / kStripRows * space.query_parts * space.query_step + r % kStripRows;
    for (int j = 0; j < dim; j += 32) {
      VF first[4], second[4];
      for (int i = 0; i < 4; ++i) {
        const bool there = r + i < task.num_rows;
        first[i] = there ? hn::LoadU(d, task.queries[r + i] + j) : hn::Zero(d);
        second[i] = there ? hn::LoadU(d, task.queries[r + i] + j + 16) : hn::Zero(d);
      }
      for (int part = 0; part < space.query_parts; ++part) {
        VF v[4];
        for (int i = 0; i < 4; ++i) {
          const auto a = TakePart(&first[i]), b = TakePart(&second[i]);
          v[i] = Pair(hn::ConcatEven(du, b, a), hn::ConcatOdd(du, b, a));
        }
        TurnFour(v);
        auto* const out = reinterpret_cast<float*>(to + part * space.query_step);
        StoreBlocks(v, out + static_cast<size_t>(j) / 2 * kStripRows, kStripRows);
      }
    }
  }
}

// Loads a row's numbers from j on; zeros where there is no row.
HWY_INLINE VF LoadOrZero(const ChunkedRows& rows, const void* row, int j) {
  return row == nullptr ? hn::Zero(DF()) : Load16Typed(row, rows.dtype, j).v[0];
}

// The rows of a tile; nullptr: there is none.
HWY_INLINE void ListRows(const BlockTask& task, const ChunkedRows& rows, const KeyTile& tile, const void** out) {
  for (int i = 0; i < kTileKeys; ++i) {
    const int32_t run = tile.runs[i / kRunKeys], place = run + i % kRunKeys;
    out[i] = run < 0 || place >= task.num_places ? nullptr : rows.row(place);
  }
}

HWY_INLINE void PackKeys(const BlockTask& task, const KeyTile& tile, const TileSpace& space, uint16_t* out) {
  const DU du;
  const hn::Rebind<uint16_t, DU> d16;
  const int dim = task.keys.head_dim;
  const void* rows[kTileKeys];
  ListRows(task, task.keys, tile, rows);
  for (int i = 0; i < kTileKeys; ++i, out += dim) {
    if (space.key_parts == 1 && rows[i] != nullptr) {
      std::memcpy(out, rows[i], dim * sizeof(uint16_t));
      continue;
    }
    for (int j = 0; j < dim; j += kLanes) {
      VF x = LoadOrZero(task.keys, rows[i], j);
      for (int part = 0; part < space.key_parts; ++part) {
        hn::StoreU(hn::TruncateTo(d16, hn::ShiftRight<16>(TakePart(&x))), d16, out + part * space.tile + j);
      }
    }
  }
}

// Values with their keys in a row: pairs of neighbours, four of them turned at a time.
HWY_INLINE void TurnValues(const BlockTask& task, const KeyTile& tile, const TileSpace& space, uint16_t* out) {
  const int dim = task.values.head_dim;
  const void* rows[kTileKeys];
  ListRows(task, task.values, tile, rows);
  for (int key = 0; key < kTileKeys; key += 8) {
    for (int j = 0; j < dim; j += kLanes) {
      VF x[8];
      for (int i = 0; i < 8; ++i) x[i] = LoadOrZero(task.values, rows[key + i], j);
      for (int part = 0; part < space.value_parts; ++part) {
        VF v[4];
        for (int i = 0; i < 4; ++i) {
          const auto even = TakePart(&x[2 * i]), odd = TakePart(&x[2 * i + 1]);
          v[i] = Pair(even, odd);
        }
        TurnFour(v);
        uint16_t* const to = out + part * space.tile + static_cast<size_t>(j) * kTileKeys + key;
        StoreBlocks(v, reinterpret_cast<float*>(to), kTileKeys / 2);
      }
    }
  }
}

// The nearest bfloat16 number, in the upper half of each lane; of finite numbers.
HWY_INLINE hn::VFromD<DU> Rounded(VF x) {
  const DU du;
  return hn::And(hn::Add(hn::BitCast(du, x), hn::Set(du, 0x8000u)), hn::Set(du, 0xFFFF0000u));
}

// Splits two neighbouring keys' weights, in pairs of parts: three, which are all of them, or the nearest two.
template <int kParts>
HWY_INLINE void SplitPair(VF a, VF b, uint32_t* const* parts, size_t at) {
  const DF d;
  const DU du;
  if constexpr (kParts == kMostParts) {
    for (int i = 0; i < kParts; ++i) {
      const auto even = TakePart(&a), odd = TakePart(&b);
      hn::Store(hn::BitCast(du, Pair(even, odd)), du, parts[i] + at);
    }
  } else {
    const auto even = Rounded(a), odd = Rounded(b);
    hn::Store(hn::BitCast(du, Pair(even, odd)), du, parts[0] + at);
    a = hn::Sub(a, hn::BitCast(d, even)), b = hn::Sub(b, hn::BitCast(d, odd));
    hn::Store(hn::BitCast(du, Pair(Rounded(a), Rounded(b))), du, parts[1] + at);
  }
}

}  // namespace seine::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // AVX3_DL

#endif
