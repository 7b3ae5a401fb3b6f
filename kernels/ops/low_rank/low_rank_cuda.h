// Bodies of the kernels of low_rank_items.h. A block takes sixteen rows, transposed in shared memory; a lane takes one
// column of the product, so that a matrix's entry is read once for sixteen rows. Sums run over k in order, as
// kernels/ops/matrix/matrix.h has them.
#ifndef SEINE_KERNELS_OPS_LOW_RANK_LOW_RANK_CUDA_H_
#define SEINE_KERNELS_OPS_LOW_RANK_LOW_RANK_CUDA_H_

#include <cstdint>

#include "kernels/cuda/block.h"
#include "kernels/cuda/load.h"
#include "kernels/math.h"
#include "kernels/ops/low_rank/low_rank_items.h"

namespace seine::cuda {

inline int LowRankBlocks(int rows) { return (rows + kLowRankTile - 1) / kLowRankTile; }

// Rows of up to kDim numbers: entry k of row r at [k][r].
template <int kDim>
using LowRankRowsOf = float[kDim][kLowRankTile];

// fn(column) of each below `count`, a lane a column; count <= kDim.
template <int kDim, typename Block, typename Fn>
SEINE_BODY void EachColumn(Block& block, int count, Fn fn) {
  block.Lanes([&](int lane) {
    SEINE_ROLLED for (int column = lane; column < Least(kDim, count); column += kLowRankLanes) fn(column);
  });
}

struct TileSums {
  float of[kLowRankTile];
};
// Adds to the sums of rows [first, last): over k < depth, in order, tile[k][r] * entry(k).
template <typename Entry>
SEINE_BODY void AddProducts(const float (*tile)[kLowRankTile], int depth, int first, int last, Entry entry,
                            TileSums* sums) {
  for (int k = 0; k < depth; ++k) {
    const float right = entry(k);
    for (int r = 0; r < kLowRankTile; ++r) {
      if (r >= first && r < last) sums->of[r] = sums->of[r] + tile[k][r] * right;
    }
  }
}

// Element i of a row of any type. Codes' rows begin at multiples of their type's size alone.
SEINE_BODY inline float WidenAt(const uint8_t* row, DType dtype, int i) {
  if (dtype == DType::kFloat32) return Load<float>(row + i * 4);
  return Widen16(Load<uint16_t>(row + i * 2), dtype);
}

template <int kDim>
struct ProjectShared {
  alignas(16) LowRankRowsOf<kDim> rows, codes;
};

// Grid: (blocks of kLowRankTile rows, items). Heads of up to kDim.
template <int kDim>
struct ProjectBody {
  using Shared = ProjectShared<kDim>;
  template <typename Block>
  SEINE_BODY static void Run(Block& block, Shared& s, const ProjectArgs& args) {
    const ProjectItem& item = args.items[block.index().y];
    const int first = block.index().x * kLowRankTile, count = Least(kLowRankTile, item.count - first);
    if (count <= 0) return;
    const int dim = item.head_dim, rank = item.rank, stride = (rank + 15) / 16 * 16;
    const float* rows = item.rows + static_cast<int64_t>(first) * dim;
    block.Lanes([&](int lane) {
      for (int i = lane; i < kLowRankTile * dim; i += kLowRankLanes) {
        const int r = i / dim, j = i - r * dim;
        s.rows[j][r] = r < count ? Load<float>(rows + i) : 0.0f;
      }
    });
    EachColumn<kDim>(block, rank, [&](int column) {
      TileSums sums = {};
      AddProducts(
          s.rows, dim, 0, count, [&](int k) { return Load<float>(item.basis + k * stride + column); }, &sums);
      for (int r = 0; r < kLowRankTile; ++r) s.codes[column][r] = sums.of[r];
      for (int r = 0; r < count; ++r) {
        const int64_t at = static_cast<int64_t>(first + r) * rank + column;
        if (item.dtype == DType::kFloat32) {
          reinterpret_cast<float*>(item.codes)[at] = s.codes[column][r];
        } else {
          reinterpret_cast<uint16_t*>(item.codes)[at] = Narrow16(s.codes[column][r], item.dtype);
        }
      }
    });
    if (item.residuals == nullptr) return;
    float* residuals = item.residuals + static_cast<int64_t>(first) * dim;
    EachColumn<kDim>(block, dim, [&](int column) {
      TileSums sums = {};
      AddProducts(
          s.codes, rank, 0, count, [&](int k) { return Load<float>(item.basis + column * stride + k); }, &sums);
      for (int r = 0; r < kLowRankTile; ++r) {
        if (r < count) residuals[r * dim + column] = s.rows[column][r] - sums.of[r];
      }
    });
  }
};

// A tile of rows to be rebuilt: one's code and basis, or the row itself where it is kept full-rank.
template <int kDim>
struct RebuildShared {
  alignas(16) LowRankRowsOf<kDim> codes;
  const uint8_t* code[kLowRankTile];
  const uint16_t* basis[kLowRankTile];  // nullptr: kept full-rank, or no row
  const uint8_t* full[kLowRankTile];
  int32_t position[kLowRankTile];
};

// `place` is row r's, or r is no row where `wanted` is false.
template <typename Shared>
SEINE_BODY void AimAt(const LowRankRows& rows, bool wanted, int64_t place, int32_t position, int r, Shared* s) {
  s->basis[r] = nullptr;
  s->full[r] = nullptr;
  if (!wanted) return;
  const LowRankRun& run = RunOf(rows, place);
  const int64_t full = FullRowOf(run, place);
  const auto size = static_cast<int64_t>(SizeOf(rows.dtype));
  if (full >= 0) {
    s->full[r] = run.full + full * rows.head_dim * size;
  } else {
    s->basis[r] = run.basis;
    s->code[r] = run.codes + (place - run.begin) * rows.rank * size;
    s->position[r] = position;
  }
}

// The codes that AimAt has aimed at; zeros for other rows.
template <typename Block, int kDim>
SEINE_BODY void LoadCodes(Block& block, RebuildShared<kDim>& s, const LowRankRows& rows) {
  const int rank = rows.rank;
  block.Lanes([&](int lane) {
    for (int i = lane; i < kLowRankTile * rank; i += kLowRankLanes) {
      const int r = i / rank, k = i - r * rank;
      s.codes[k][r] = s.basis[r] != nullptr ? WidenAt(s.code[r], rows.dtype, k) : 0.0f;
    }
  });
}

// Writes the rows that AimAt has aimed at to out(r) [head_dim]; out is read and written by this block alone.
template <typename Block, int kDim, typename Out>
SEINE_BODY void RebuildTile(Block& block, RebuildShared<kDim>& s, const LowRankRows& rows, Out out) {
  const int dim = rows.head_dim, rank = rows.rank;
  LoadCodes(block, s, rows);
  EachColumn<kDim>(block, dim, [&](int column) {
    TileSums sums = {};
    for (int first = 0, last; first < kLowRankTile; first = last) {  // rows of one basis together
      const uint16_t* basis = s.basis[first];
      for (last = first + 1; last < kLowRankTile && s.basis[last] == basis;) ++last;
      if (basis == nullptr) continue;
      AddProducts(
          s.codes, rank, first, last,
          [&](int k) { return HalfToFloat(Load<uint16_t>(basis + static_cast<int64_t>(k) * dim + column)); }, &sums);
    }
    for (int r = 0; r < kLowRankTile; ++r) {
      if (s.basis[r] != nullptr) out(r)[column] = sums.of[r];
      if (s.full[r] != nullptr) out(r)[column] = WidenAt(s.full[r], rows.dtype, column);
    }
  });
  if (rows.rope.inv_freq == nullptr) return;
  block.Lanes([&](int lane) {
    const int pairs = dim / 2;
    for (int i = lane; i < kLowRankTile * pairs; i += kLowRankLanes) {
      const int r = i / pairs;
      if (s.basis[r] != nullptr) TurnPair(rows.rope, dim, i - r * pairs, s.position[r], out(r));
    }
  });
}

// Grid: (blocks of kLowRankTile rows, items). Heads of up to kDim.
template <int kDim>
struct RebuildBody {
  using Shared = RebuildShared<kDim>;
  template <typename Block>
  SEINE_BODY static void Run(Block& block, Shared& s, const RebuildArgs& args) {
    const RebuildItem& item = args.items[block.index().y];
    const int first = block.index().x * kLowRankTile;
    if (first >= item.count) return;
    block.Lanes([&](int lane) {
      if (lane >= kLowRankTile) return;
      const int i = first + lane;
      const bool wanted = i < item.count;
      const bool turns = wanted && item.rows.rope.inv_freq != nullptr;
      AimAt(item.rows, wanted, wanted ? item.places[i] : 0, turns ? item.positions[i] : 0, lane, &s);
    });
    RebuildTile(block, s, item.rows,
                [&](int r) { return item.out + static_cast<int64_t>(first + r) * item.rows.head_dim; });
  }
};

template <typename Run>
void ForEachKernel(const ProjectArgs& args, Run run) {
  const BlockIndex grid = {LowRankBlocks(args.most_rows), args.num_items};
  if (args.most_dim > kNarrowHeadDim) return run(ProjectBody<kMaxHeadDim>(), grid, Lanes<kLowRankLanes>());
  run(ProjectBody<kNarrowHeadDim>(), grid, Lanes<kLowRankLanes>());
}
template <typename Run>
void ForEachKernel(const RebuildArgs& args, Run run) {
  const BlockIndex grid = {LowRankBlocks(args.most_rows), args.num_items};
  if (args.most_dim > kNarrowHeadDim) return run(RebuildBody<kMaxHeadDim>(), grid, Lanes<kLowRankLanes>());
  run(RebuildBody<kNarrowHeadDim>(), grid, Lanes<kLowRankLanes>());
}

}  // namespace seine::cuda

#endif  // SEINE_KERNELS_OPS_LOW_RANK_LOW_RANK_CUDA_H_
