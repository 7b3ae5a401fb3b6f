// Sixth step: the best `keep` estimates of each query, and the keys of a set: the union of its queries' survivors.
#ifndef SEINE_KERNELS_OPS_SEARCH_SURVIVORS_CUDA_H_
#define SEINE_KERNELS_OPS_SEARCH_SURVIVORS_CUDA_H_

#include <cstdint>

#include "kernels/cuda/block.h"
#include "kernels/ops/mass/log_sum_exp_cuda.h"
#include "kernels/ops/mass/zone_mass_cuda.h"
#include "kernels/ops/query/search_items.h"
#include "kernels/ops/select/block_select_cuda.h"

namespace seine::cuda {

inline constexpr int kSurvivorLanes = 512;

struct SurvivorShared {
  RadixShared radix;
  PrefixShared prefix;
  LseShared lse;
  MassShared mass;
};

// Grid: (group, items).
struct SurvivorBody {
  using Shared = SurvivorShared;
  template <typename Block>
  SEINE_BODY static void Run(Block& block, Shared& s, const SearchArgs& args) {
    const SearchItem& item = args.items[block.index().y];
    if (block.index().x >= item.group || item.num_keys == 0) return;
    const QueryPlan& q = args.queries[item.first_query + block.index().x];
    const uint32_t n = q.state->num_candidates, keep = item.keep;
    FirstCut cut = {0, 0xFFFFFFFFu};
    if (keep < n) {
      cut = FindFirstCut(block, s.radix, n, keep, [&](uint32_t i, uint32_t* value, uint32_t* place) {
        *value = OrderedBits(q.estimates[i]);
        *place = i;
        return true;
      });
    }
    const uint32_t kept = Compact(
        block, s.prefix, n, [&](uint32_t i) { return cut.Keeps(OrderedBits(q.estimates[i]), i); },
        [&](uint32_t i, uint32_t place) { q.survivors[place] = q.chosen[i]; });
    block.Lanes([&](int lane) {
      if (lane == 0) q.state->num_survivors = kept;
    });
    if (!NeedsZoneMass(args.params)) return;
    BeginLse(block, s.lse);
    AddUnscored(block, s.mass, s.lse, item, q, SetScale(args.params, item));
    block.Lanes([&](int lane) {
      if (lane == 0) q.state->lse = s.lse.state;
    });
  }
};

// Sets of several queries only (a set of one has its query's survivors). The mask of the set's first query serves
// again. Grid: (1, sets).
struct UnionBody {
  using Shared = PrefixShared;
  template <typename Block>
  SEINE_BODY static void Run(Block& block, Shared& s, const SearchArgs& args) {
    const SetPlan& set = args.sets[block.index().y];
    const SearchItem& item = args.items[set.item];
    if (set.count == 1 || item.num_keys == 0) return;
    const QueryPlan* queries = args.queries + item.first_query + set.first;
    uint32_t* mask = queries[0].mask;
    const uint32_t words = static_cast<uint32_t>(item.num_keys / 32);
    block.Lanes([&](int lane) {
      for (uint32_t i = lane; i < words; i += block.num_lanes()) mask[i] = 0;
    });
    block.Lanes([&](int lane) {
      for (int g = 0; g < set.count; ++g) {
        for (uint32_t i = lane; i < queries[g].state->num_survivors; i += block.num_lanes()) {
          const uint32_t key = queries[g].survivors[i];
          block.AtomicOr(&mask[key / 32], 1u << key % 32);
        }
      }
    });
    const uint32_t n = CompactBits(block, s, mask, words, [&](uint32_t key, uint32_t place) { set.keys[place] = key; });
    block.Lanes([&](int lane) {
      if (lane == 0) *set.num_keys = n;
    });
  }
};

}  // namespace seine::cuda

#endif  // SEINE_KERNELS_OPS_SEARCH_SURVIVORS_CUDA_H_
