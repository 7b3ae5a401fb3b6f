// Fine estimates of <q, k> from the coarse row and the record of a key, a lane a key: of candidates, and of the keys of
// a set where none are stored.
//
// Reads of a candidate: its coarse words (a sector each), its record, and the factors' base of its window. A balanced
// record is read as a stream of words in registers; where each coordinate's bits lie is the same for all lanes and read
// from shared memory as one broadcast: 5 operations for a coordinate without coarse bits, 11 for one with.
#ifndef SEINE_KERNELS_OPS_SEARCH_RERANK_CUDA_H_
#define SEINE_KERNELS_OPS_SEARCH_RERANK_CUDA_H_

#include <cstdint>

#include "kernels/codec_bodies.h"
#include "kernels/cuda/block.h"
#include "kernels/ops/query/code_reader.h"
#include "kernels/ops/query/query_cuda.h"
#include "kernels/ops/query/search_items.h"

namespace seine::cuda {

template <typename Block>
SEINE_BODY void BeginRerank(Block& block, RerankShared& s, const SearchItem& item, const QueryPlan& q) {
  VisitCodec(item.codec->kind, [&](auto search) {
    using Search = decltype(search);
    block.Lanes([&](int lane) { Search::LoadSteps(s, *item.codec, q, lane, block.num_lanes()); });
  });
}

// Codec::Rerank: out[i] = estimate of keys[i], times `scale`, for i in [first, end). Lanes beyond RerankColumns rest.
template <typename Block>
SEINE_BODY void EstimateKeys(Block& block, RerankShared& s, const SearchItem& item, const QueryPlan& q,
                             const uint32_t* keys, uint32_t first, uint32_t end, float scale, float* out) {
  VisitCodec(item.codec->kind, [&](auto search) {
    using Search = decltype(search);
    const float unit = Search::FineUnit(*item.codec, *q.state), coarse_step = q.state->coarse_step;
    const int columns = RerankColumns(item.layout);
    block.Lanes([&](int lane) {
      if (lane >= columns) return;
      uint32_t* words = s.words + lane;
      const Code code = {words, columns};
      for (uint32_t i = first + lane; i < end; i += columns) {
        const uint32_t key = keys[i], base = LoadCode(item, key, words, columns);
        const float fine = Search::FineSum(s, item.layout, code, base);
        out[i] = (q.bases[key / kWindowTokens] * coarse_step + fine * unit) * scale;
      }
    });
  });
}

// Keys of a set of items without stored keys. Grid: (blocks of 512 keys times the set's queries, sets).
struct RescoreBody {
  using Shared = RerankShared;
  template <typename Block>
  SEINE_BODY static void Run(Block& block, Shared& s, const SearchArgs& args) {
    const SetPlan& set = args.sets[block.index().y];
    const SearchItem& item = args.items[set.item];
    if (item.stored() || item.num_keys == 0) return;
    const int place = block.index().x % set.count;
    const uint32_t first = block.index().x / set.count * kRerankKeys, n = *set.num_keys;
    if (first >= n) return;
    const QueryPlan& q = args.queries[item.first_query + set.first + place];
    BeginRerank(block, s, item, q);
    EstimateKeys(block, s, item, q, set.keys, first, Least(n, first + kRerankKeys), set.scale,
                 set.logits + static_cast<size_t>(place) * set.capacity);
  }
};

}  // namespace seine::cuda

#endif  // SEINE_KERNELS_OPS_SEARCH_RERANK_CUDA_H_
