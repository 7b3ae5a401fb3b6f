// Third step, a few blocks a query: exactly the wanted candidates among those found, ties to the lowest position,
// ascending, and their fine estimates. Each block finds the cut over the whole list, and writes what has its places.
// The last block of a query goes on to the survivors, the last of a set to their union (survivors_cuda.h). Under a
// recall target the number of candidates follows from the best of them. Where the sample misled (fewer found than
// wanted, or more than there is room for) the blocks search the whole zone again, and that is counted.
#ifndef SEINE_KERNELS_OPS_SEARCH_CHOOSE_CUDA_H_
#define SEINE_KERNELS_OPS_SEARCH_CHOOSE_CUDA_H_

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/block.h"
#include "kernels/ops/query/code_reader.h"
#include "kernels/ops/query/search_items.h"
#include "kernels/ops/scan/collision.h"
#include "kernels/ops/scan/scan_cuda.h"
#include "kernels/ops/scan/target_cut_cuda.h"
#include "kernels/ops/search/rerank_cuda.h"
#include "kernels/ops/search/survivors_cuda.h"
#include "kernels/ops/select/block_select_cuda.h"

namespace seine::cuda {

inline constexpr int kChooseLanes = 512;
inline constexpr int kChooseKeys = 1024;  // candidates a block, where that is neither too few nor too many blocks

static_assert(kChooseLanes == kTargetLanes);
static_assert(kPieceKeys == kScanWindows * static_cast<int>(kWindowTokens));

struct CandidateShared {
  RadixShared radix;
  PrefixShared prefix;
  TargetShared target;
  uint32_t begins[kChooseLanes];  // of pieces, in the order of their keys
};

// Memory that a block's steps share, one after another.
struct ChooseShared {
  static constexpr size_t kBytes = Most(Most(sizeof(CandidateShared), sizeof(RerankShared)), sizeof(SurvivorShared));
  template <typename Step>
  SEINE_BODY Step& Of() {
    return *reinterpret_cast<Step*>(memory);
  }
  alignas(16) uint8_t memory[kBytes];
};

// emit(key, place) for each found key that keep(found) accepts, places ascending from 0. Pieces are looked at as many
// at a time as there are lanes; a lane walks through a share of their keys.
template <typename Block, typename Keep, typename Emit>
SEINE_BODY void CompactPieces(Block& block, CandidateShared& s, const QueryPlan& q, uint32_t num_pieces, Keep keep,
                              Emit emit) {
  uint32_t before = 0;
  for (uint32_t first = 0; first < num_pieces; first += kChooseLanes) {
    const uint32_t pieces = Least<uint32_t>(kChooseLanes, num_pieces - first);
    block.Lanes([&](int lane) {
      s.prefix.counts[lane] = static_cast<uint32_t>(lane) < pieces ? q.pieces[first + lane].count : 0;
    });
    const uint32_t total = ExclusivePrefix(block, s.prefix), each = (total + kChooseLanes - 1) / kChooseLanes;
    block.Lanes([&](int lane) { s.begins[lane] = s.prefix.counts[lane]; });
    const auto walk = [&](int lane, auto use) {
      uint32_t i = lane * each;
      const uint32_t end = Least(total, i + each);
      if (i >= end) return;
      for (uint32_t piece = CountBelow(s.begins, pieces, i + 1) - 1; i < end; ++piece) {
        const uint32_t begin = s.begins[piece], stop = Least(end, piece + 1 < pieces ? s.begins[piece + 1] : total);
        const FoundKey* found = q.found + q.pieces[first + piece].start;
        for (; i < stop; ++i) use(found[i - begin]);
      }
    };
    block.Lanes([&](int lane) {
      uint32_t count = 0;
      walk(lane, [&](FoundKey found) { count += keep(found); });
      s.prefix.counts[lane] = count;
    });
    const uint32_t kept = ExclusivePrefix(block, s.prefix);
    block.Lanes([&](int lane) {
      uint32_t place = before + s.prefix.counts[lane];
      walk(lane, [&](FoundKey found) {
        if (keep(found)) emit(found.index, place++);
      });
    });
    before += kept;
  }
}

// Grid: (group times the most splits of an item, items); a query's blocks are neighbours.
struct ChooseBody {
  using Shared = ChooseShared;
  template <typename Block>
  SEINE_BODY static void Run(Block& block, Shared& s, const SearchArgs& args) {
    const SearchItem& item = args.items[block.index().y];
    const int place = block.index().x / item.splits, split = block.index().x % item.splits;
    if (place >= item.group || item.num_keys == 0) return;
    const QueryPlan& q = args.queries[item.first_query + place];
    const Share share = Candidates(block, s.template Of<CandidateShared>(), args, item, q, split);
    RerankShared& rerank = s.template Of<RerankShared>();
    BeginRerank(block, rerank, item, q);
    EstimateKeys(block, rerank, item, q, q.chosen, share.begin, share.end, 1.0f, q.estimates);
    if (!block.IsLast(&q.state->blocks_done, item.splits)) return;
    SurvivorShared& survivors = s.template Of<SurvivorShared>();
    FindSurvivors(block, survivors, args, item, q);
    if (item.num_sets == item.group) return;  // a set a query: its survivors
    const QueryPlan* queries = args.queries + item.first_query;
    if (!block.IsLast(&queries[0].state->queries_done, item.group)) return;
    UniteSurvivors(block, survivors.prefix, args.sets[item.first_set], queries);
  }

  // How many candidates a query has, and whether they are among those found.
  struct Choice {
    bool listed;
    uint32_t keep;
  };
  // Places of candidates that are a block's own.
  struct Share {
    uint32_t begin, end;
  };

  // Writes the candidates of the block's share.
  template <typename Block>
  SEINE_BODY static Share Candidates(Block& block, CandidateShared& s, const SearchArgs& args, const SearchItem& item,
                                     const QueryPlan& q, int split) {
    const bool collision = args.params.coarse == Coarse::kCollision;
    const uint32_t n = static_cast<uint32_t>(item.num_keys), found = q.state->found;
    Choice choice = {found >= static_cast<uint32_t>(item.wanted) && found <= static_cast<uint32_t>(item.capacity),
                     static_cast<uint32_t>(item.wanted)};
    if (args.params.recall_target > 0) choice = ByTarget(block, s, args, item, q, choice.listed);
    if (LeavesOut(args.params, item)) choice = AmongCollisions(block, s, item, q);
    const uint64_t keep = choice.keep;
    const Share share = {static_cast<uint32_t>(keep * split / item.splits),
                         static_cast<uint32_t>(keep * (split + 1) / item.splits)};
    const auto emit = [&](uint32_t key, uint32_t place) {
      if (place < share.begin || place >= share.end) return;
      q.chosen[place] = key;
      if (q.candidates != nullptr) q.candidates[place] = static_cast<int32_t>(item.zone_begin + key);
    };
    FirstCut cut = {0, 0xFFFFFFFFu};
    if (choice.listed) {
      if (found > choice.keep) {
        cut = FindFirstCut(block, s.radix, n, found, choice.keep, [&](uint32_t i, uint32_t* value, uint32_t* place) {
          *value = OrderedBits(q.found[i].score);
          *place = q.found[i].index;
          return true;
        });
      }
      CompactPieces(
          block, s, q, (n + kPieceKeys - 1) / kPieceKeys,
          [&](FoundKey key) { return cut.Keeps(OrderedBits(key.score), key.index); }, emit);
    } else {
      const auto score = [&](uint32_t key) { return ScoreOf(item, q, collision, key); };
      cut = FindFirstCut(block, s.radix, n, n, choice.keep, [&](uint32_t i, uint32_t* value, uint32_t* place) {
        *value = score(i);
        *place = i;
        return true;
      });
      Compact(
          block, s.prefix, n, [&](uint32_t key) { return cut.Keeps(score(key), key); }, emit);
    }
    block.Lanes([&](int lane) {
      if (lane != 0 || split != 0) return;
      if (!choice.listed) q.state->rescanned = 1;
      q.state->num_candidates = choice.keep;
      *q.num_candidates = static_cast<int32_t>(choice.keep);
    });
    return share;
  }

  // At most as many as collide, which are all found where the threshold is as low as it goes.
  template <typename Block>
  SEINE_BODY static Choice AmongCollisions(Block& block, CandidateShared& s, const SearchItem& item,
                                           const QueryPlan& q) {
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
  SEINE_BODY static Choice ByTarget(Block& block, CandidateShared& s, const SearchArgs& args, const SearchItem& item,
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
};

}  // namespace seine::cuda

#endif  // SEINE_KERNELS_OPS_SEARCH_CHOOSE_CUDA_H_
