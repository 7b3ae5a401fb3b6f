// First step of a search, a block a query: the query in the codec's space, its int8 forms, its coarse tables (nibble
// sums, or the paper's tiers), and the threshold that it is searched by (ops/scan/sample_cuda.h). The twin of
// Codec::PrepareQuery and MakeTiers.
#ifndef SEINE_KERNELS_OPS_SEARCH_PREPARE_CUDA_H_
#define SEINE_KERNELS_OPS_SEARCH_PREPARE_CUDA_H_

#include <cmath>
#include <cstdint>

#include "kernels/codec_bodies.h"
#include "kernels/cuda/block.h"
#include "kernels/math.h"
#include "kernels/ops/query/code_reader.h"
#include "kernels/ops/query/query_cuda.h"
#include "kernels/ops/query/search_items.h"
#include "kernels/ops/query/zone_mass.h"
#include "kernels/ops/scan/collision.h"
#include "kernels/ops/scan/sample_cuda.h"
#include "kernels/ops/select/block_select_cuda.h"

namespace seine::cuda {

// The query in the codec's space and its int8 forms.
template <typename Search, typename Block>
SEINE_BODY void TransformQuery(Block& block, PrepareShared& s, const SearchItem& item, const QueryPlan& q) {
  const int dim = item.layout.head_dim;
  block.Lanes([&](int lane) {
    if (lane < dim) s.query[lane] = s.transformed[lane] = item.queries[q.place * dim + lane];
    if (lane < 3) s.largest[lane] = 0;
    if (lane == 3) s.centre_dot = 0;
  });
  Search::Transform(block, s, *item.codec, dim);
  block.Lanes([&](int lane) {
    const Scale8 query_scale = Scale8Of(BitsFloat(s.largest[0])), fine_scale = Scale8Of(BitsFloat(s.largest[1]));
    if (lane < dim) {
      q.transformed[lane] = s.transformed[lane];
      q.query8[lane] = reinterpret_cast<int8_t*>(s.query8)[lane] =
          ToInt8(Search::Int8Source(s)[lane], query_scale.inverse);
    }
    if (lane < (dim + 63) / 64 * 64) {
      q.fine8[lane] = Search::kFineWeights && lane < dim ? ToInt8(s.weights[lane], fine_scale.inverse) : int8_t{0};
    }
    if (lane != 0) return;
    q.state->query8_step = query_scale.step;
    q.state->fine8_step = Search::kFineWeights ? fine_scale.step : 0.0f;
    q.state->found = q.state->rescanned = q.state->blocks_done = q.state->queries_done = 0;
  });
}

// Nibble tables of the query and what the scan measures in their units.
template <typename Search, typename Block>
SEINE_BODY void MakeNibbleTables(Block& block, PrepareShared& s, const SearchItem& item, const QueryPlan& q) {
  const CodecTables& codec = *item.codec;
  const int dim = item.layout.head_dim, bytes = item.layout.coarse_bytes;
  Search::BeginNibbles(block, s, codec);
  block.Lanes([&](int lane) {
    for (int i = lane; i < bytes * 32; i += block.num_lanes()) {
      const float sum = Search::NibbleSum(s, codec, i / 16, i % 16);
      s.sums[i] = sum;
      RaiseTo(block, &s.largest[2], sum);
    }
    if (lane < dim && item.shared_centre != nullptr) {
      block.AtomicAdd(&s.centre_dot, item.shared_centre[lane] * reinterpret_cast<int8_t*>(s.query8)[lane]);
    }
  });
  block.Lanes([&](int lane) {
    const TableScale scale = TableScaleOf(BitsFloat(s.largest[2]));
    uint8_t* tables = reinterpret_cast<uint8_t*>(item.nibble_tables + (q.place / 4) * bytes * 32) + q.place % 4;
    for (int i = lane; i < bytes * 32; i += block.num_lanes()) {
      tables[i * 4] = s.entries[i] = TableEntry(s.sums[i], scale.inverse);
    }
    if (lane != 0) return;
    q.state->coarse_step = scale.step;
    q.state->shared_base = 0;
    if (item.shared_centre != nullptr && scale.step > 0) {
      q.state->shared_base = static_cast<float>(s.centre_dot) * (item.shared_scale * q.state->query8_step / scale.step);
    }
  });
}

// Codec::CoarseNoise.
template <typename Search, typename Block>
SEINE_BODY void PredictNoise(Block& block, PrepareShared& s, const SearchItem& item, const QueryPlan& q) {
  block.Lanes([&](int lane) {
    if (lane >= 16) return;
    float sum = 0;
    for (int i = lane; i < item.layout.head_dim; i += 16) sum = sum + Search::NoiseOf(s, *item.codec, i);
    s.noise[lane] = sum;
  });
  block.Lanes([&](int lane) {
    if (lane != 0) return;
    const float step = q.state->coarse_step;
    q.state->noise = step > 0 ? sqrtf(TreeOf(s.noise)) / step : 0.0f;
  });
}

// Codec::PredictErrors.
template <typename Search, typename Block>
SEINE_BODY void PredictErrors(Block& block, PrepareShared& s, const SearchItem& item, const QueryPlan& q) {
  const CodecTables& codec = *item.codec;
  block.Lanes([&](int lane) {
    if (lane >= 16) return;
    float sums[3] = {0, 0, 0};
    for (int i = lane; i < item.layout.head_dim; i += 16) Search::AddErrors(s, codec, i, sums);
    for (int i = 0; i < 3; ++i) s.errors[i][lane] = sums[i];
  });
  block.Lanes([&](int lane) {
    if (lane != 0) return;
    const float step = q.state->coarse_step;
    q.state->errors = {0, 0, 1, 0};
    if (!(step > 0)) return;
    float deviations[3];
    for (int i = 0; i < 3; ++i) deviations[i] = sqrtf(TreeOf(s.errors[i])) / step;
    q.state->errors = Search::ErrorsOf(codec, deviations);
  });
}

// collision.h, SearchedCounts, of one subvector: to s.counts.
template <typename Block>
SEINE_BODY void CountSearched(Block& block, PrepareShared& s, const SearchItem& item, int b) {
  const bool takes_off = TakesOff(item.num_keys, item.counted_keys);
  const int64_t begin = takes_off ? item.num_keys : 0, end = takes_off ? item.counted_keys : item.num_keys;
  block.Lanes([&](int lane) {
    if (lane < kCentroids) s.counts[lane] = takes_off ? item.collision_counts[b * kCentroids + lane] : 0;
  });
  block.Lanes([&](int lane) {
    for (int64_t i = begin + lane; i < end; i += block.num_lanes()) {
      const uint32_t segment = static_cast<uint32_t>(i) / item.segment_keys;
      const uint32_t key = static_cast<uint32_t>(i) - segment * item.segment_keys;
      const uint8_t* tile = item.segments[segment].coarse +
                            static_cast<size_t>(key / kTileTokens) * kTileTokens * item.layout.coarse_bytes;
      const uint8_t byte = tile[b / 4 * 64 + key % kTileTokens * 4 + b % 4];
      block.AtomicAdd(&s.counts[byte], takes_off ? ~uint32_t{0} : uint32_t{1});
    }
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
      block.Lanes([&](int lane) {
        if (lane < kCentroids) tables[(b * kCentroids + lane) * 4] = 0;
      });
      continue;
    }
    block.Lanes([&](int lane) {
      if (lane >= kCentroids) return;
      float sum = 0;
      for (int j = 0; j < 8; ++j) sum += (lane >> j) & 1 ? s.transformed[b * 8 + j] : -s.transformed[b * 8 + j];
      s.ranks[lane] = CollisionRank(sum, lane);
    });
    block.Lanes([&](int lane) {
      if (lane >= kCentroids) return;
      uint32_t before = 0;
      for (int i = 0; i < kCentroids; ++i) before += s.ranks[i] < s.ranks[lane];
      rank[lane] = before;
    });
    CountSearched(block, s, item, b);
    block.Lanes([&](int lane) {
      s.prefix.counts[lane < kCentroids ? rank[lane] : lane] = lane < kCentroids ? s.counts[lane] : 0;
    });
    ExclusivePrefix(block, s.prefix);
    block.Lanes([&](int lane) {
      if (lane >= kCentroids) return;
      const uint64_t before = s.prefix.counts[rank[lane]];
      int tier = 0;
      while (tier < kCollisionTiers && before >= CollisionLimit(item.num_keys, args.params.collision_fraction, tier))
        ++tier;
      tables[(b * 256 + lane) * 4] = static_cast<uint8_t>(kCollisionTiers - tier);
    });
  }
}

// Grid: (group, items).
struct PrepareBody {
  struct Shared {
    PrepareShared prepare;
    SampleShared sample;
  };
  template <typename Block>
  SEINE_BODY static void Run(Block& block, Shared& shared, const SearchArgs& args) {
    PrepareShared& s = shared.prepare;
    const SearchItem& item = args.items[block.index().y];
    if (block.index().x >= item.group) return;
    const QueryPlan& q = args.queries[item.first_query + block.index().x];
    VisitCodec(item.codec->kind, [&](auto search) {
      using Search = decltype(search);
      TransformQuery<Search>(block, s, item, q);
      MakeNibbleTables<Search>(block, s, item, q);
      if (args.params.recall_target > 0) PredictNoise<Search>(block, s, item, q);
      if (NeedsZoneMass(args.params)) PredictErrors<Search>(block, s, item, q);
    });
    if (args.params.coarse == Coarse::kCollision) MakeTierTables(block, s, args, item, q);
    if (item.num_keys > 0) MakeThreshold(block, shared.sample, s, args, item, q);
  }
};

}  // namespace seine::cuda

#endif  // SEINE_KERNELS_OPS_SEARCH_PREPARE_CUDA_H_
