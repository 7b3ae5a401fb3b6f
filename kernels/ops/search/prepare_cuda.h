// First step of a search, a block a query: the query in the codec's space, its int8 forms, and its coarse tables
// (nibble sums, or the paper's tiers). The twin of Codec::PrepareQuery and MakeTiers.
#ifndef SEINE_KERNELS_OPS_SEARCH_PREPARE_CUDA_H_
#define SEINE_KERNELS_OPS_SEARCH_PREPARE_CUDA_H_

#include <cmath>
#include <cstdint>

#include "kernels/cuda/block.h"
#include "kernels/cuda/code_reader.h"
#include "kernels/math.h"
#include "kernels/ops/mass/zone_mass.h"
#include "kernels/ops/scan/collision.h"
#include "kernels/ops/search/search_items.h"
#include "kernels/ops/select/block_select_cuda.h"

namespace seine::cuda {

inline constexpr int kPrepareLanes = 256;
static_assert(kPrepareLanes >= kMaxHeadDim && kPrepareLanes == 256);  // a lane a coordinate, a lane a sign centroid
inline constexpr int kMaxNibbles = kMaxHeadDim / 4;

struct PrepareShared {
  float query[kMaxHeadDim], transformed[kMaxHeadDim], weights[kMaxHeadDim];
  float sums[kMaxNibbles * 16];
  uint32_t largest[3];  // bits of the largest |x|: of query8's source, of the weights, of the sums
  float noise[16], errors[3][16];
  int32_t centre_dot;
  uint16_t first_place[kMaxNibbles];  // balanced: where a nibble's coordinates begin in coarse_order
  uint64_t ranks[256];                // collision
  PrefixShared prefix;
};

// Non-negative floats compare as their bits.
template <typename Block>
SEINE_BODY void RaiseTo(Block& block, uint32_t* largest, float x) {
  block.AtomicMax(largest, FloatBits(fabsf(x)));
}

// cpu/ops.h, Rotate, on one row in shared memory: a lane a butterfly.
template <typename Block>
SEINE_BODY void RotateRow(Block& block, float* row, int dim, const float* signs) {
  int p = 32;
  while (p * 2 <= dim) p *= 2;
  for (int part = 0; part < (p < dim ? 2 : 1); ++part) {
    float* x = part == 0 ? row : row + dim - p;
    block.Lanes([&](int lane) {
      if (lane < p) x[lane] = x[lane] * signs[part * p + lane];
    });
    for (int h = 1; h < p; h *= 2) {
      block.Lanes([&](int lane) {
        if (lane >= p / 2) return;
        const int i = lane / h * 2 * h + lane % h;
        const float a = x[i], b = x[i + h];
        x[i] = a + b;
        x[i + h] = a - b;
      });
    }
  }
}

// Sum of nibble `nibble` where its bits are v.
SEINE_BODY inline float RsqNibbleSum(const float* transformed, int nibble, int v) {
  float sum = 0;
  for (int j = 0; j < 4; ++j) sum += (v >> j) & 1 ? transformed[nibble * 4 + j] : -transformed[nibble * 4 + j];
  return sum;
}
SEINE_BODY inline float BalancedNibbleSum(const CodecTables& codec, const PrepareShared& s, int nibble, int v) {
  float sum = 0;
  for (uint32_t place = s.first_place[nibble]; place < codec.coarse_order.size; ++place) {
    const int i = codec.coarse_order.data[place];
    const BalancedCell cell = codec.cells.data[i];
    if (cell.coarse_at / 4 != nibble) break;
    const int half = 1 << (cell.coarse_bits - 1), index = (v >> (cell.coarse_at % 4)) & (2 * half - 1);
    const float* levels = codec.quantiser.data->merged[cell.total_bits][cell.coarse_bits];
    sum += s.weights[i] * (index >= half ? levels[index - half] : -levels[half - 1 - index]);
  }
  return sum;
}

// The query in the codec's space and its int8 forms.
template <typename Block>
SEINE_BODY void TransformQuery(Block& block, PrepareShared& s, const SearchItem& item, const QueryPlan& q) {
  const CodecTables& codec = *item.codec;
  const int dim = item.layout.head_dim;
  const bool balanced = codec.kind == CodecKind::kBalanced;
  block.Lanes([&](int lane) {
    if (lane < dim) s.query[lane] = s.transformed[lane] = item.queries[q.place * dim + lane];
    if (lane < 3) s.largest[lane] = 0;
    if (lane == 3) s.centre_dot = 0;
  });
  if (!balanced) RotateRow(block, s.transformed, dim, codec.signs.data);
  block.Lanes([&](int lane) {
    if (lane >= dim) return;
    if (balanced) {  // cpu/ops.h, MulRow
      float sum = 0;
      for (int j = 0; j < dim; ++j) sum = sum + s.query[j] * codec.query_map.data[static_cast<size_t>(j) * dim + lane];
      s.transformed[lane] = sum;
      s.weights[lane] = codec.cells.data[lane].total_bits > 0 ? sum * codec.deviation.data[lane] : 0.0f;
      RaiseTo(block, &s.largest[1], s.weights[lane]);
    }
    RaiseTo(block, &s.largest[0], balanced ? s.query[lane] : s.transformed[lane]);
  });
  block.Lanes([&](int lane) {
    const Scale8 query_scale = Scale8Of(BitsFloat(s.largest[0])), fine_scale = Scale8Of(BitsFloat(s.largest[1]));
    if (lane < dim) {
      q.transformed[lane] = s.transformed[lane];
      q.query8[lane] = ToInt8(balanced ? s.query[lane] : s.transformed[lane], query_scale.inverse);
    }
    if (lane < (dim + 63) / 64 * 64) {
      q.fine8[lane] = balanced && lane < dim ? ToInt8(s.weights[lane], fine_scale.inverse) : int8_t{0};
    }
    if (lane != 0) return;
    q.state->query8_step = query_scale.step;
    q.state->fine8_step = balanced ? fine_scale.step : 0.0f;
    q.state->found = q.state->rescanned = 0;
  });
}

// Nibble tables of the query and what the scan measures in their units.
template <typename Block>
SEINE_BODY void MakeNibbleTables(Block& block, PrepareShared& s, const SearchItem& item, const QueryPlan& q) {
  const CodecTables& codec = *item.codec;
  const int dim = item.layout.head_dim, bytes = item.layout.coarse_bytes;
  const bool balanced = codec.kind == CodecKind::kBalanced;
  if (balanced) {
    block.Lanes([&](int lane) {
      if (lane < kMaxNibbles) s.first_place[lane] = static_cast<uint16_t>(codec.coarse_order.size);
    });
    block.Lanes([&](int lane) {
      if (lane >= static_cast<int>(codec.coarse_order.size)) return;
      const auto nibble_of = [&](int place) { return codec.cells.data[codec.coarse_order.data[place]].coarse_at / 4; };
      const int nibble = nibble_of(lane);
      if (lane == 0 || nibble_of(lane - 1) != nibble) s.first_place[nibble] = static_cast<uint16_t>(lane);
    });
  }
  block.Lanes([&](int lane) {
    for (int i = lane; i < bytes * 32; i += block.num_lanes()) {
      float sum = 0;
      if (balanced) sum = BalancedNibbleSum(codec, s, i / 16, i % 16);
      if (!balanced && i / 16 < dim / 4) sum = RsqNibbleSum(s.transformed, i / 16, i % 16);
      s.sums[i] = sum;
      RaiseTo(block, &s.largest[2], sum);
    }
    if (lane < dim && item.shared_centre != nullptr) {
      block.AtomicAdd(&s.centre_dot, item.shared_centre[lane] * q.query8[lane]);
    }
  });
  block.Lanes([&](int lane) {
    const TableScale scale = TableScaleOf(BitsFloat(s.largest[2]));
    uint8_t* tables = reinterpret_cast<uint8_t*>(item.nibble_tables + (q.place / 4) * bytes * 32) + q.place % 4;
    for (int i = lane; i < bytes * 32; i += block.num_lanes()) tables[i * 4] = TableEntry(s.sums[i], scale.inverse);
    if (lane != 0) return;
    q.state->coarse_step = scale.step;
    q.state->shared_base = 0;
    if (item.shared_centre != nullptr && scale.step > 0) {
      q.state->shared_base = static_cast<float>(s.centre_dot) * (item.shared_scale * q.state->query8_step / scale.step);
    }
  });
}

// Codec::CoarseNoise: the balanced code's, 0 of the other.
template <typename Block>
SEINE_BODY void PredictNoise(Block& block, PrepareShared& s, const SearchItem& item, const QueryPlan& q) {
  const CodecTables& codec = *item.codec;
  const bool balanced = codec.kind == CodecKind::kBalanced;
  block.Lanes([&](int lane) {
    if (!balanced || lane >= 16) return;
    float sum = 0;
    for (int i = lane; i < item.layout.head_dim; i += 16) {
      const BalancedCell cell = codec.cells.data[i];
      const float left =
          cell.total_bits > 0 ? codec.quantiser.data->distortion[cell.total_bits][cell.coarse_bits] : 1.0f;
      sum = sum + NoiseTerm(s.transformed[i], codec.deviation.data[i], left);
    }
    s.noise[lane] = sum;
  });
  block.Lanes([&](int lane) {
    if (lane != 0) return;
    const float step = q.state->coarse_step;
    q.state->noise = balanced && step > 0 ? sqrtf(TreeOf(s.noise)) / step : 0.0f;
  });
}

// Codec::PredictErrors.
template <typename Block>
SEINE_BODY void PredictErrors(Block& block, PrepareShared& s, const SearchItem& item, const QueryPlan& q) {
  const CodecTables& codec = *item.codec;
  const bool balanced = codec.kind == CodecKind::kBalanced;
  block.Lanes([&](int lane) {
    if (lane >= 16) return;
    float sums[3] = {0, 0, 0};
    for (int i = lane; i < item.layout.head_dim; i += 16) {
      const float t = s.transformed[i];
      if (!balanced) {
        sums[0] = sums[0] + t * t;
        continue;
      }
      const ErrorShare share = codec.error_shares.data[i];
      sums[0] = sums[0] + NoiseTerm(t, codec.deviation.data[i], share.added);
      sums[1] = sums[1] + NoiseTerm(t, codec.deviation.data[i], share.unseen);
      sums[2] = sums[2] + NoiseTerm(t, codec.deviation.data[i], share.fine);
    }
    for (int i = 0; i < 3; ++i) s.errors[i][lane] = sums[i];
  });
  block.Lanes([&](int lane) {
    if (lane != 0) return;
    const float step = q.state->coarse_step;
    q.state->errors = {0, 0, 1, 0};
    if (!(step > 0)) return;
    const auto deviation = [&](const float* lanes) { return sqrtf(TreeOf(lanes)) / step; };
    q.state->errors = RsqErrors(deviation(s.errors[0]));
    if (!balanced) return;
    q.state->errors = {deviation(s.errors[0]), deviation(s.errors[1]), codec.fine_shrink, deviation(s.errors[2])};
  });
}

// collision.h, MakeTiers: a lane a centroid, its rank by counting those before it.
template <typename Block>
SEINE_BODY void MakeTierTables(Block& block, PrepareShared& s, const SearchArgs& args, const SearchItem& item,
                               const QueryPlan& q) {
  const int bytes = item.layout.coarse_bytes, subvectors = item.layout.head_dim / 8;
  uint8_t* tables = reinterpret_cast<uint8_t*>(item.tier_tables + (q.place / 4) * bytes * 256) + q.place % 4;
  typename Block::template Local<uint32_t> rank(block);
  for (int b = 0; b < bytes; ++b) {
    if (b >= subvectors) {
      block.Lanes([&](int lane) { tables[(b * 256 + lane) * 4] = 0; });
      continue;
    }
    block.Lanes([&](int lane) {
      float sum = 0;
      for (int j = 0; j < 8; ++j) sum += (lane >> j) & 1 ? s.transformed[b * 8 + j] : -s.transformed[b * 8 + j];
      s.ranks[lane] = CollisionRank(sum, lane);
    });
    block.Lanes([&](int lane) {
      uint32_t before = 0;
      for (int i = 0; i < 256; ++i) before += s.ranks[i] < s.ranks[lane];
      rank[lane] = before;
    });
    block.Lanes([&](int lane) { s.prefix.counts[rank[lane]] = item.collision_counts[b * 256 + lane]; });
    ExclusivePrefix(block, s.prefix);
    block.Lanes([&](int lane) {
      const uint64_t before = s.prefix.counts[rank[lane]];
      int tier = 0;
      while (tier < kCollisionTiers && before >= CollisionLimit(item.num_keys, args.params.rho, tier)) ++tier;
      tables[(b * 256 + lane) * 4] = static_cast<uint8_t>(kCollisionTiers - tier);
    });
  }
}

// Grid: (group, items).
struct PrepareBody {
  using Shared = PrepareShared;
  template <typename Block>
  SEINE_BODY static void Run(Block& block, Shared& s, const SearchArgs& args) {
    const SearchItem& item = args.items[block.index().y];
    if (block.index().x >= item.group) return;
    const QueryPlan& q = args.queries[item.first_query + block.index().x];
    TransformQuery(block, s, item, q);
    MakeNibbleTables(block, s, item, q);
    if (args.params.recall_target > 0) PredictNoise(block, s, item, q);
    if (NeedsZoneMass(args.params)) PredictErrors(block, s, item, q);
    if (args.params.coarse == Coarse::kCollision) MakeTierTables(block, s, args, item, q);
  }
};

}  // namespace seine::cuda

#endif  // SEINE_KERNELS_OPS_SEARCH_PREPARE_CUDA_H_
