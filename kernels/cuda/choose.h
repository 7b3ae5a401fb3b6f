// Fourth step, a block a query: exactly the wanted candidates among those found, ties to the lowest position,
// ascending. Where the sample misled (fewer found than wanted, or more than there is room for) the block searches the
// whole zone again by itself, and counts that.
#ifndef SEINE_KERNELS_CUDA_CHOOSE_H_
#define SEINE_KERNELS_CUDA_CHOOSE_H_

#include <cstdint>

#include "kernels/cuda/block.h"
#include "kernels/cuda/block_select.h"
#include "kernels/cuda/code_reader.h"
#include "kernels/cuda/search_items.h"

namespace seine::cuda {

inline constexpr int kChooseLanes = 512;

struct ChooseShared {
  RadixShared radix;
  PrefixShared prefix;
};

// Grid: (group, items).
struct ChooseBody {
  using Shared = ChooseShared;
  template <typename Block>
  SEINE_BODY static void Run(Block& block, Shared& s, const SearchArgs& args) {
    const SearchItem& item = args.items[block.index().y];
    if (block.index().x >= item.group || item.num_keys == 0) return;
    const QueryPlan& q = args.queries[item.first_query + block.index().x];
    const uint32_t found = q.state->found, wanted = item.wanted;
    if (found < wanted || found > static_cast<uint32_t>(item.capacity)) {
      SearchAgain(block, s, item, q, args.params.coarse == Coarse::kCollision);
    } else if (found > wanted) {
      const FirstCut cut =
          FindFirstCut(block, s.radix, found, wanted, [&](uint32_t i, uint32_t* value, uint32_t* place) {
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
  }

  // The mask of exactly the wanted keys, from every key's score.
  template <typename Block>
  SEINE_BODY static void SearchAgain(Block& block, Shared& s, const SearchItem& item, const QueryPlan& q,
                                     bool collision) {
    const uint32_t n = static_cast<uint32_t>(item.num_keys);
    const auto score = [&](uint32_t key) {
      const Window w = WindowOf(item, key / kWindowTokens);
      const int32_t sum = CoarseSum(item, collision, q.place, w, key % kWindowTokens);
      return OrderedBits(CoarseScore(collision, sum, q.bases[key / kWindowTokens], w, key % kWindowTokens));
    };
    const FirstCut cut =
        FindFirstCut(block, s.radix, n, item.wanted, [&](uint32_t i, uint32_t* value, uint32_t* place) {
          *value = score(i);
          *place = i;
          return true;
        });
    block.Lanes([&](int lane) {
      for (uint32_t word = lane; word < n / 32; word += block.num_lanes()) {
        uint32_t bits = 0;
        for (uint32_t i = 0; i < 32; ++i) bits |= uint32_t{cut.Keeps(score(word * 32 + i), word * 32 + i)} << i;
        q.mask[word] = bits;
      }
      if (lane == 0) q.state->rescanned = 1;
    });
  }
};

}  // namespace seine::cuda

#endif  // SEINE_KERNELS_CUDA_CHOOSE_H_
