// Steps that follow on the candidates: the best `keep` estimates of each query, and the keys of a set: the union of its
// queries' survivors. By one block, from ascending lists; nothing is as long as the zone.
#ifndef SEINE_KERNELS_OPS_SEARCH_SURVIVORS_CUDA_H_
#define SEINE_KERNELS_OPS_SEARCH_SURVIVORS_CUDA_H_

#include <cstdint>

#include "kernels/cuda/block.h"
#include "kernels/ops/mass/log_sum_exp_cuda.h"
#include "kernels/ops/mass/zone_mass_cuda.h"
#include "kernels/ops/query/search_items.h"
#include "kernels/ops/select/block_select_cuda.h"

namespace seine::cuda {

struct SurvivorShared {
  RadixShared radix;
  PrefixShared prefix;
  LseShared lse;
  MassShared mass;
};

// Survivors of a query that has its candidates and their estimates; under a mass, the log-sum-exp of all other keys.
template <typename Block>
SEINE_BODY void FindSurvivors(Block& block, SurvivorShared& s, const SearchArgs& args, const SearchItem& item,
                              const QueryPlan& q) {
  const uint32_t n = q.state->num_candidates, keep = item.keep;
  FirstCut cut = {0, 0xFFFFFFFFu};
  if (keep < n) {
    cut = FindFirstCut(block, s.radix, n, n, keep, [&](uint32_t i, uint32_t* value, uint32_t* place) {
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

// Survivors of a set's queries one list behind another.
struct SurvivorLists {
  const QueryPlan* queries;
  int count;
  SEINE_BODY uint32_t length(int g) const { return queries[g].state->num_survivors; }
  SEINE_BODY uint32_t total() const {
    uint32_t sum = 0;
    for (int g = 0; g < count; ++g) sum += length(g);
    return sum;
  }
  // Calls use(e, g, key) for e in [begin, end): the key at place e of all, in list g.
  template <typename Use>
  SEINE_BODY void Walk(uint32_t begin, uint32_t end, Use use) const {
    int g = 0;
    uint32_t first = 0;
    for (uint32_t e = begin; e < end; ++e) {
      while (e - first >= length(g)) first += length(g++);
      use(e, g, queries[g].survivors[e - first]);
    }
  }
  // Whether no list before g holds the key of list g.
  SEINE_BODY bool IsNew(int g, uint32_t key) const {
    uint32_t place;
    for (int before = 0; before < g; ++before) {
      if (FindAmong(queries[before].survivors, length(before), key, &place)) return false;
    }
    return true;
  }
};

// set.keys: each new key goes to the place that is the number of new keys below it, list by list.
template <typename Block>
SEINE_BODY void UniteSurvivors(Block& block, PrefixShared& s, const SetPlan& set, const QueryPlan* queries) {
  const SurvivorLists lists = {queries, set.count};
  const uint32_t total = lists.total(), lanes = block.num_lanes(), each = (total + lanes - 1) / lanes;
  const auto walk = [&](int lane, auto use) {
    lists.Walk(Least(total, lane * each), Least(total, (lane + 1) * each), use);
  };
  block.Lanes([&](int lane) {
    uint32_t fresh = 0;
    walk(lane, [&](uint32_t e, int g, uint32_t key) {
      set.ranks[e] = lists.IsNew(g, key);
      fresh += set.ranks[e];
    });
    s.counts[lane] = fresh;
  });
  const uint32_t n = ExclusivePrefix(block, s);
  block.Lanes([&](int lane) {  // from here on new keys before place e
    uint32_t before = s.counts[lane];
    walk(lane, [&](uint32_t e, int, uint32_t) {
      const uint32_t fresh = set.ranks[e];
      set.ranks[e] = before;
      before += fresh;
    });
    if (lane == 0) *set.num_keys = n;
  });
  const auto before = [&](uint32_t e) { return e < total ? set.ranks[e] : n; };
  block.Lanes([&](int lane) {
    walk(lane, [&](uint32_t e, int, uint32_t key) {
      if (before(e + 1) == before(e)) return;  // it is in a list before
      uint32_t place = 0, first = 0;
      for (int g = 0; g < set.count; ++g) {
        const uint32_t length = lists.length(g);
        place += before(first + CountBelow(queries[g].survivors, length, key)) - before(first);
        first += length;
      }
      set.keys[place] = key;
    });
  });
}

}  // namespace seine::cuda

#endif  // SEINE_KERNELS_OPS_SEARCH_SURVIVORS_CUDA_H_
