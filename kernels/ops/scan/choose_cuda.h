// Fourth step, a block a query: exactly the wanted candidates among those found, ties to the lowest position,
// ascending. Under a recall target their number follows from the best of them. Where the sample misled (fewer found
// than wanted, or more than there is room for) the block searches the whole zone again by itself, and counts that.
#ifndef SEINE_KERNELS_OPS_SCAN_CHOOSE_CUDA_H_
#define SEINE_KERNELS_OPS_SCAN_CHOOSE_CUDA_H_

#include <cstdint>

#include "kernels/cuda/block.h"
#include "kernels/ops/query/code_reader.h"
#include "kernels/ops/query/search_items.h"
#include "kernels/ops/scan/collision.h"
#include "kernels/ops/scan/target_cut_cuda.h"
#include "kernels/ops/select/block_select_cuda.h"

namespace seine::cuda {

inline constexpr int kChooseLanes = 512;

static_assert(kChooseLanes == kTargetLanes);

struct ChooseShared {
  RadixShared radix;
  PrefixShared prefix;
  TargetShared target;
};

// Grid: (group, items).
struct ChooseBody {
  using Shared = ChooseShared;
  template <typename Block>
  SEINE_BODY static void Run(Block& block, Shared& s, const SearchArgs& args) {
    const SearchItem& item = args.items[block.index().y];
    if (block.index().x >= item.group || item.num_keys == 0) return;
    const QueryPlan& q = args.queries[item.first_query + block.index().x];
    const bool collision = args.params.coarse == Coarse::kCollision;
    const uint32_t found = q.state->found;
    Choice choice = {found >= static_cast<uint32_t>(item.wanted) && found <= static_cast<uint32_t>(item.capacity),
                     static_cast<uint32_t>(item.wanted)};
    if (args.params.recall_target > 0) choice = ByTarget(block, s, args, item, q, choice.listed);
    if (LeavesOut(args.params, item)) choice = AmongCollisions(block, s, item, q);
    if (!choice.listed) {
      SearchAgain(block, s, item, q, collision, choice.keep);
    } else if (found > choice.keep) {
      const FirstCut cut =
          FindFirstCut(block, s.radix, found, choice.keep, [&](uint32_t i, uint32_t* value, uint32_t* place) {
            *value = OrderedBits(q.found[i].score);
            *place = q.found[i].index;
            return true;
          });
      block.Lanes([&](int lane) {
        for (uint32_t i = lane; i < found; i += block.num_lanes()) {
          const FoundKey key = q.found[i];
          if (!cut.Keeps(OrderedBits(key.score), key.index)) {
            block.AtomicAnd(&q.mask[key.index / 32], ~(1u << key.index % 32));
          }
        }
      });
    }
    const uint32_t words = static_cast<uint32_t>(item.num_keys / 32);
    CompactBits(block, s.prefix, q.mask, words, [&](uint32_t key, uint32_t place) {
      q.chosen[place] = key;
      if (q.candidates != nullptr) q.candidates[place] = static_cast<int32_t>(item.zone_begin + key);
    });
    block.Lanes([&](int lane) {
      if (lane != 0) return;
      q.state->num_candidates = choice.keep;
      *q.num_candidates = static_cast<int32_t>(choice.keep);
    });
  }

  // How many candidates a query has, and whether they are among those found.
  struct Choice {
    bool listed;
    uint32_t keep;
  };

  // At most as many as collide, which are all found where the threshold is as low as it goes.
  template <typename Block>
  SEINE_BODY static Choice AmongCollisions(Block& block, Shared& s, const SearchItem& item, const QueryPlan& q) {
    const uint32_t found = q.state->found, wanted = static_cast<uint32_t>(item.wanted);
    const bool room = found <= static_cast<uint32_t>(item.capacity);
    if (room && (found >= wanted || q.state->threshold == kLeastCollision)) return {true, Least(wanted, found)};
    const uint32_t colliding = CountAbove(block, s.target, kLeastCollision / 2, static_cast<uint32_t>(item.num_keys),
                                          [&](uint32_t i, uint32_t* value) {
                                            *value = ScoreOf(item, q, true, i);
                                            return true;
                                          });
    return {false, Least(wanted, colliding)};
  }

  SEINE_BODY static uint32_t ScoreOf(const SearchItem& item, const QueryPlan& q, bool collision, uint32_t key) {
    const Window w = WindowOf(item, key / kWindowTokens);
    const int32_t sum = CoarseSum(item, collision, q.place, w, key % kWindowTokens);
    return OrderedBits(CoarseScore(collision, sum, q.bases[key / kWindowTokens], w, key % kWindowTokens));
  }

  // recall_target.h. What was found holds the best of the zone, but the cut may lie below the threshold.
  template <typename Block>
  SEINE_BODY static Choice ByTarget(Block& block, Shared& s, const SearchArgs& args, const SearchItem& item,
                                    const QueryPlan& q, bool listed) {
    const bool collision = args.params.coarse == Coarse::kCollision;
    const uint32_t n = static_cast<uint32_t>(item.num_keys), found = q.state->found;
    const uint32_t k = Least(n, static_cast<uint32_t>(args.params.top_k));
    const auto of_list = [&](uint32_t i, uint32_t* value) {
      *value = OrderedBits(q.found[i].score);
      return true;
    };
    const auto of_zone = [&](uint32_t i, uint32_t* value) {
      *value = ScoreOf(item, q, collision, i);
      return true;
    };
    block.Lanes([&](int lane) {
      if (lane == 0) s.target.spread = q.state->spread;
    });
    const float cut = listed ? FindTargetCut(block, s.radix, s.target, q.best, found, k, args.params, of_list)
                             : FindTargetCut(block, s.radix, s.target, q.best, n, k, args.params, of_zone);
    listed = listed && (cut >= q.state->threshold || found >= static_cast<uint32_t>(item.most));
    const uint32_t above =
        listed ? CountAbove(block, s.target, cut, found, of_list) : CountAbove(block, s.target, cut, n, of_zone);
    return {listed, Most(static_cast<uint32_t>(item.wanted), Least(static_cast<uint32_t>(item.most), above))};
  }

  // The mask of exactly the best `keep` keys, from every key's score.
  template <typename Block>
  SEINE_BODY static void SearchAgain(Block& block, Shared& s, const SearchItem& item, const QueryPlan& q,
                                     bool collision, uint32_t keep) {
    const uint32_t n = static_cast<uint32_t>(item.num_keys);
    const FirstCut cut = FindFirstCut(block, s.radix, n, keep, [&](uint32_t i, uint32_t* value, uint32_t* place) {
      *value = ScoreOf(item, q, collision, i);
      *place = i;
      return true;
    });
    block.Lanes([&](int lane) {
      for (uint32_t word = lane; word < n / 32; word += block.num_lanes()) {
        uint32_t bits = 0;
        for (uint32_t i = 0; i < 32; ++i) {
          bits |= uint32_t{cut.Keeps(ScoreOf(item, q, collision, word * 32 + i), word * 32 + i)} << i;
        }
        q.mask[word] = bits;
      }
      if (lane == 0) q.state->rescanned = 1;
    });
  }
};

}  // namespace seine::cuda

#endif  // SEINE_KERNELS_OPS_SCAN_CHOOSE_CUDA_H_
