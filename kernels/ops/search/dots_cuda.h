// Fourth step: exact dot products of the set's keys, and of the dense runs, with its queries. Rows lie in page-locked
// host memory or on the device; both are read in place, 16 bytes a lane. A row is read once for all queries. Of keys
// that are kept low-rank only codes come over the link: they are multiplied by the queries, which the block projects on
// their basis (ops/low_rank/low_rank_products.h), or, where they turn to their positions, rebuilt in shared memory.
#ifndef SEINE_KERNELS_OPS_SEARCH_DOTS_CUDA_H_
#define SEINE_KERNELS_OPS_SEARCH_DOTS_CUDA_H_

#include <cstdint>

#include "kernels/cuda/block.h"
#include "kernels/cuda/load.h"
#include "kernels/math.h"
#include "kernels/ops/low_rank/low_rank_cuda.h"
#include "kernels/ops/query/code_reader.h"
#include "kernels/ops/query/search_items.h"

namespace seine::cuda {

inline constexpr int kDotLanes = 256;
inline constexpr int kDotRows = kDotLanes / 16;  // a half-warp a row
inline constexpr int kDotQueries = 4;            // at a time

// Rows of up to kDim numbers.
template <int kDim>
struct DotShared {
  bool wanted[kDotRows];
  const uint8_t* rows[kDotRows];  // nullptr: not wanted, or rebuilt
  DType types[kDotRows];
  float values[kDotRows][kDim];
  float lanes[kDotQueries][kDotRows][17];  // a column more, so that the tree's readers meet no bank twice
};

template <int kDim>
struct LowRankDotShared : DotShared<kDim> {
  RebuildShared<kDim> rebuild;
  float projected[kDotQueries][kDim];  // U^T q
};
static_assert(kDotRows == kLowRankTile && kDotLanes == kLowRankLanes);

// 16 bytes of a row, as floats to `out`. Rows are multiples of 32 bytes.
SEINE_BODY inline void LoadPiece(const uint8_t* row, DType dtype, int piece, float* out) {
  const Quad quad = LoadQuad(row + piece * 16);
  if (dtype == DType::kFloat32) {
    for (int i = 0; i < 4; ++i) out[piece * 4 + i] = BitsFloat(quad.word[i]);
    return;
  }
  for (int i = 0; i < 8; ++i) {
    const uint16_t bits = static_cast<uint16_t>(quad.word[i / 2] >> (i % 2 * 16));
    out[piece * 8 + i] = dtype == DType::kFloat16 ? HalfToFloat(bits) : Bf16ToFloat(bits);
  }
}

// Row r of a set: its keys, then the dense runs' rows.
SEINE_BODY inline const uint8_t* RowOf(const SearchItem& item, const SetPlan& set, uint32_t num_keys, uint32_t r,
                                       DType* dtype) {
  if (r < num_keys) {
    const int64_t position = item.zone_begin + (set.keys != nullptr ? set.keys[r] : r);
    *dtype = item.key_dtype;
    return item.chunks[position / item.chunk_tokens] +
           (position % item.chunk_tokens) * item.layout.head_dim * SizeOf(item.key_dtype);
  }
  r -= num_keys;
  for (int i = 0; i < item.num_dense; ++i) {
    const DenseRows& run = item.dense[i];
    if (r < static_cast<uint32_t>(run.count)) {
      *dtype = run.dtype;
      return run.data + r * run.stride_bytes;
    }
    r -= run.count;
  }
  return nullptr;
}

SEINE_BODY inline int32_t PositionOf(const SearchItem& item, int64_t place) {
  if (item.position_chunks == nullptr) return static_cast<int32_t>(place);
  const uint8_t* chunk = item.position_chunks[place / item.position_chunk_tokens];
  return reinterpret_cast<const int32_t*>(chunk)[place % item.position_chunk_tokens];
}

// store(i, row, sum of product(i, row, j) over j < depth) for `count` queries i and the rows wanted: in 16 lanes and
// one tree, as on the CPU.
template <typename Block, typename Shared, typename Wanted, typename Product, typename Store>
SEINE_BODY void SumRows(Block& block, Shared& s, int count, int depth, Wanted wanted, Product product, Store store) {
  block.Lanes([&](int lane) {
    const int row = lane / 16, l = lane % 16;
    if (!wanted(row)) return;
    for (int i = 0; i < count; ++i) {
      float sum = 0;
      for (int j = l; j < depth; j += 16) sum = sum + product(i, row, j);
      s.lanes[i][row][l] = sum;
    }
  });
  block.Lanes([&](int lane) {
    const int row = lane % kDotRows, i = lane / kDotRows;
    if (i >= count || !wanted(row)) return;
    float* lanes = s.lanes[i][row];
    for (int h = 8; h >= 1; h /= 2) {
      for (int l = 0; l < h; ++l) lanes[l] = lanes[l] + lanes[l + h];
    }
    store(i, row, lanes[0]);
  });
}

// Makes ready what AimAt has aimed at: rows, in s.values, of those that turn or are kept full-rank, and codes of the
// others, which keep their basis.
template <typename Block, typename Shared>
SEINE_BODY void LoadLowRank(Block& block, Shared& s, const LowRankRows& rows) {
  if (rows.rope.inv_freq != nullptr) {
    RebuildTile(block, s.rebuild, rows, [&](int r) { return s.values[r]; });
    block.Lanes([&](int lane) {
      if (lane < kLowRankTile) s.rebuild.basis[lane] = nullptr;
    });
    return;
  }
  LoadCodes(block, s.rebuild, rows);
  block.Lanes([&](int lane) {
    for (int i = lane; i < kLowRankTile * rows.head_dim; i += kLowRankLanes) {
      const int r = i / rows.head_dim, j = i - r * rows.head_dim;
      if (s.rebuild.full[r] != nullptr) s.values[r][j] = WidenAt(s.rebuild.full[r], rows.dtype, j);
    }
  });
}

// The basis that row r waits for, if none before it does.
template <typename Shared>
SEINE_BODY const uint16_t* FreshBasis(const Shared& s, int r) {
  const uint16_t* basis = s.rebuild.basis[r];
  for (int before = 0; before < r; ++before) {
    if (s.rebuild.basis[before] == basis) return nullptr;
  }
  return basis;
}

// store(i, row, <query i, row>) for rows that are codes, basis by basis; query(i) is a pointer.
template <typename Block, typename Shared, typename Query, typename Store>
SEINE_BODY void DotCodes(Block& block, Shared& s, const LowRankRows& rows, int count, Query query, Store store) {
  for (int r = 0; r < kDotRows; ++r) {
    const uint16_t* basis = FreshBasis(s, r);
    if (basis == nullptr) continue;
    for (int first = 0; first < rows.rank; first += kDotRows) {
      SumRows(
          block, s, count, rows.head_dim, [&](int k) { return first + k < rows.rank; },
          [&](int i, int k, int j) {
            return HalfToFloat(Load<uint16_t>(basis + static_cast<int64_t>(first + k) * rows.head_dim + j)) *
                   query(i)[j];
          },
          [&](int i, int k, float sum) { s.projected[i][first + k] = sum; });
    }
    SumRows(
        block, s, count, rows.rank, [&](int row) { return s.rebuild.basis[row] == basis; },
        [&](int i, int row, int k) { return s.rebuild.codes[k][row] * s.projected[i][k]; }, store);
  }
}

// Grid: (blocks of 16 rows, sets). Heads of up to kDim; kLowRank: for batches of which some item keeps keys low-rank.
template <int kDim, bool kLowRank>
struct DotBody {
  using Shared = std::conditional_t<kLowRank, LowRankDotShared<kDim>, DotShared<kDim>>;
  template <typename Block>
  SEINE_BODY static void Run(Block& block, Shared& s, const SearchArgs& args) {
    const SetPlan& set = args.sets[block.index().y];
    const SearchItem& item = args.items[set.item];
    if (item.num_keys == 0) return;
    const int dim = item.layout.head_dim;
    const uint32_t keys = set.keys != nullptr ? *set.num_keys : static_cast<uint32_t>(item.num_keys);
    const uint32_t total = keys + (set.with_dense ? item.dense_tokens : 0), first = block.index().x * kDotRows;
    if (first >= total) return;
    block.Lanes([&](int lane) {
      if (lane >= kDotRows) return;
      const uint32_t r = first + lane;
      const bool wanted = r < total && (r >= keys || item.stored());
      const bool rebuilt = kLowRank && wanted && r < keys && item.low_rank.num_runs > 0;
      s.wanted[lane] = wanted;
      s.rows[lane] = wanted && !rebuilt ? RowOf(item, set, keys, r, &s.types[lane]) : nullptr;
      if constexpr (kLowRank) {
        const int64_t place = rebuilt ? item.zone_begin + (set.keys != nullptr ? set.keys[r] : r) : 0;
        AimAt(item.low_rank, rebuilt, place, rebuilt ? PositionOf(item, place) : 0, lane, &s.rebuild);
      }
    });
    block.Lanes([&](int lane) {
      const int row = lane / 16;
      if (s.rows[row] == nullptr) return;
      const int pieces = static_cast<int>(dim * SizeOf(s.types[row]) / 16);
      for (int piece = lane % 16; piece < pieces; piece += 16)
        LoadPiece(s.rows[row], s.types[row], piece, s.values[row]);
    });
    if constexpr (kLowRank) LoadLowRank(block, s, item.low_rank);
    for (int g = 0; g < set.count; g += kDotQueries) {
      const int count = Least(kDotQueries, set.count - g);
      const auto query = [&](int i) { return item.queries + static_cast<size_t>(set.first + g + i) * dim; };
      const auto store = [&](int i, int row, float dot) {
        const uint32_t r = first + row;
        if (r < keys) {
          set.logits[static_cast<size_t>(g + i) * set.capacity + r] = dot * set.scale;
        } else {
          set.dense[static_cast<size_t>(g + i) * item.dense_tokens + r - keys] = dot;
        }
      };
      const auto plain = [&](int row) {
        if constexpr (kLowRank) return s.wanted[row] && s.rebuild.basis[row] == nullptr;
        return s.wanted[row];
      };
      SumRows(
          block, s, count, dim, plain, [&](int i, int row, int j) { return s.values[row][j] * query(i)[j]; }, store);
      if constexpr (kLowRank) DotCodes(block, s, item.low_rank, count, query, store);
    }
  }
};

}  // namespace seine::cuda

#endif  // SEINE_KERNELS_OPS_SEARCH_DOTS_CUDA_H_
