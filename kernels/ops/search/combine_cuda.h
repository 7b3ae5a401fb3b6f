// Last step, a block a set: the queries' scores reduced to one a key, the best top_k (fewer under mass_p), and the
// answer where the host reads it.
#ifndef SEINE_KERNELS_OPS_SEARCH_COMBINE_CUDA_H_
#define SEINE_KERNELS_OPS_SEARCH_COMBINE_CUDA_H_

#include <cmath>
#include <cstdint>

#include "kernels/cuda/block.h"
#include "kernels/math.h"
#include "kernels/ops/mass/log_sum_exp_cuda.h"
#include "kernels/ops/mass/zone_mass_cuda.h"
#include "kernels/ops/query/search_items.h"
#include "kernels/ops/select/block_select_cuda.h"

namespace seine::cuda {

inline constexpr int kCombineLanes = 512;

struct CombineShared {
  RadixShared radix;
  PrefixShared prefix;
  LseShared lse;
  float zone[kMaxGroup], full[kMaxGroup];  // log-sum-exps of the zone, and with the dense runs
  uint32_t kept;
  float mass;  // under mass_p, of what is kept, and whether that is too little
  bool capped;
};

// Each query's log-sum-exps: of every logit under Method::kExact, else of the survivors' and what their step has left.
template <typename Block>
SEINE_BODY void MakeLses(Block& block, CombineShared& s, const SearchArgs& args, const SearchItem& item,
                         const SetPlan& set) {
  const bool exact = args.params.method == Method::kExact;
  for (int g = 0; g < set.count; ++g) {
    if (exact) {
      BeginLse(block, s.lse);
      AddToLse(block, s.lse, set.logits + static_cast<size_t>(g) * set.capacity, static_cast<uint32_t>(item.num_keys),
               1.0f);
    } else {
      const QueryPlan& q = args.queries[item.first_query + set.first + g];
      const float* logits = set.logits + static_cast<size_t>(g) * set.capacity;
      const uint32_t kept = q.state->num_survivors, n = *set.num_keys;
      block.Lanes([&](int lane) {
        if (lane == 0) s.lse.state = q.state->lse;
        for (uint32_t i = lane; i < kept; i += block.num_lanes()) {
          q.estimates[i] = logits[set.count == 1 ? i : PlaceAmong(set.keys, n, q.survivors[i])];
        }
      });
      AddToLse(block, s.lse, q.estimates, kept, 1.0f);
    }
    block.Lanes([&](int lane) {
      if (lane == 0) s.zone[g] = LseValue(s.lse.state);
    });
    const float* dots = set.dense + static_cast<size_t>(g) * item.dense_tokens;
    for (int run = 0; set.with_dense && run < item.num_dense; ++run) {
      AddToLse(block, s.lse, dots, item.dense[run].count, set.scale);
      dots += item.dense[run].count;
    }
    block.Lanes([&](int lane) {
      if (lane == 0) s.full[g] = LseValue(s.lse.state);
    });
  }
}

// ops/search/search_cpu.cc, Reduce: queries are added one after another.
template <typename Block>
SEINE_BODY void ReduceSet(Block& block, CombineShared& s, const SearchArgs& args, const SetPlan& set, uint32_t n) {
  const bool joint = args.params.scope == Scope::kPerKvHead, with_mass = args.params.mass_p > 0;
  const GqaReduce reduce = joint ? args.params.gqa_reduce : GqaReduce::kMean;
  const float share = 1.0f / static_cast<float>(set.count);
  block.Lanes([&](int lane) {
    for (uint32_t i = lane; i < n; i += block.num_lanes()) {
      float combined = reduce == GqaReduce::kMax ? -INFINITY : 0.0f, mass = 0;
      for (int g = 0; g < set.count; ++g) {
        const float l = set.logits[static_cast<size_t>(g) * set.capacity + i];
        if (reduce == GqaReduce::kSoftmaxSum) combined = combined + ExpNonPositive(Least(l - s.full[g], 0.0f));
        if (reduce == GqaReduce::kMean) combined = combined + l * share;
        if (reduce == GqaReduce::kMax) combined = Most(combined, l);
        if (with_mass) mass = mass + ExpNonPositive(Least(l - s.zone[g], 0.0f)) * share;
      }
      set.combined[i] = combined;
      if (with_mass) set.mass[i] = mass;
    }
  });
}

// The smallest set whose mass reaches mass_p, at least mass_floor: `order` is cut to it. Returns how many stay.
template <typename Block>
SEINE_BODY uint32_t CutByMass(Block& block, CombineShared& s, const SearchArgs& args, const SetPlan& set, uint32_t n) {
  uint32_t *ranks = set.ranked, *by_rank = set.ranked + set.most;
  block.Lanes([&](int lane) {
    for (uint32_t i = lane; i < n; i += block.num_lanes()) {
      const float score = set.combined[set.order[i]];
      uint32_t before = 0;
      for (uint32_t j = 0; j < n; ++j) {
        const float other = set.combined[set.order[j]];
        before += other > score || (other == score && j < i);
      }
      ranks[i] = before;
      by_rank[before] = set.order[i];
    }
  });
  block.Lanes([&](int lane) {
    if (lane != 0) return;
    double sum = 0;
    uint32_t kept = 0;
    while (kept < n &&
           (static_cast<int>(kept) < args.params.mass_floor || sum < static_cast<double>(args.params.mass_p))) {
      sum += static_cast<double>(set.mass[by_rank[kept++]]);
    }
    s.kept = kept;
    s.mass = static_cast<float>(sum);
    s.capped = sum < static_cast<double>(args.params.mass_p);
  });
  const uint32_t kept = block.Read(s.kept);
  Compact(
      block, s.prefix, n, [&](uint32_t i) { return ranks[i] < kept; },
      [&](uint32_t i, uint32_t place) { by_rank[place] = set.order[i]; });
  block.Lanes([&](int lane) {
    for (uint32_t i = lane; i < kept; i += block.num_lanes()) set.order[i] = by_rank[i];
  });
  return kept;
}

// Grid: (1, sets).
struct CombineBody {
  using Shared = CombineShared;
  template <typename Block>
  SEINE_BODY static void Run(Block& block, Shared& s, const SearchArgs& args) {
    const SetPlan& set = args.sets[block.index().y];
    const SearchItem& item = args.items[set.item];
    if (item.num_keys == 0) {
      block.Lanes([&](int lane) {
        if (lane == 0) *set.answer = {0, 0, 0, 1, 0};
      });
      return;
    }
    const uint32_t n = set.keys != nullptr ? *set.num_keys : static_cast<uint32_t>(item.num_keys);
    const bool with_mass = args.params.mass_p > 0;
    if (with_mass || set.with_dense) MakeLses(block, s, args, item, set);
    ReduceSet(block, s, args, set, n);
    const uint32_t top = Least<uint32_t>(args.params.top_k, n);
    FirstCut cut = {0, 0xFFFFFFFFu};
    if (top < n) {
      cut = FindFirstCut(block, s.radix, n, n, top, [&](uint32_t i, uint32_t* value, uint32_t* place) {
        *value = OrderedBits(set.combined[i]);
        *place = i;
        return true;
      });
    }
    uint32_t count = Compact(
        block, s.prefix, n, [&](uint32_t i) { return cut.Keeps(OrderedBits(set.combined[i]), i); },
        [&](uint32_t i, uint32_t place) { set.order[place] = i; });
    if (with_mass) count = CutByMass(block, s, args, set, count);
    block.Lanes([&](int lane) {
      for (uint32_t i = lane; i < count; i += block.num_lanes()) {
        const uint32_t at = set.order[i];
        set.positions[i] = static_cast<int32_t>(item.zone_begin + (set.keys != nullptr ? set.keys[at] : at));
        set.scores[i] = set.combined[at];
      }
      if (lane != 0) return;
      int32_t rescans = 0;
      for (int g = 0; g < set.count && set.keys != nullptr; ++g) {
        rescans += static_cast<int32_t>(args.queries[item.first_query + set.first + g].state->rescanned);
      }
      *set.answer = {static_cast<int32_t>(count), static_cast<int32_t>(n), rescans, 1, 0};
      if (!with_mass) return;
      set.answer->mass = s.mass;
      set.answer->capped = s.capped && count < static_cast<uint32_t>(item.num_keys);
    });
  }
};

}  // namespace seine::cuda

#endif  // SEINE_KERNELS_OPS_SEARCH_COMBINE_CUDA_H_
