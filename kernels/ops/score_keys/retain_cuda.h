// The selection's kernels: a block an item finds the cut and how many places each part of the scores keeps before it;
// then a block a part lists its own. Nothing depends on the order in which lanes or blocks come.
#ifndef SEINE_KERNELS_OPS_SCORE_KEYS_RETAIN_CUDA_H_
#define SEINE_KERNELS_OPS_SCORE_KEYS_RETAIN_CUDA_H_

#include <cstdint>

#include "kernels/cuda/block.h"
#include "kernels/math.h"
#include "kernels/ops/score_keys/evict_items.h"
#include "kernels/ops/select/block_select_cuda.h"

namespace seine::cuda {

struct CutShared {
  RadixShared radix;
  uint32_t counts[kSelectParts];
};

// Grid: (items).
struct CutBody {
  using Shared = CutShared;
  template <typename Block>
  SEINE_BODY static void Run(Block& block, Shared& s, const SelectArgs& args) {
    const SelectItem& item = args.items[block.index().x];
    const FirstCut cut = FindFirstCut(block, s.radix, static_cast<uint32_t>(item.count), item.count, item.kept,
                                      [&](uint32_t i, uint32_t* value, uint32_t* place) {
                                        *value = OrderedBits(item.scores[i]);
                                        *place = i;
                                        return true;
                                      });
    block.Lanes([&](int lane) {
      if (lane < kSelectParts) s.counts[lane] = 0;
    });
    block.Lanes([&](int lane) {  // a warp a part
      for (int part = lane / kWarp; part < kSelectParts; part += kCutLanes / kWarp) {
        const uint32_t begin = part * item.part(), end = Least(begin + item.part(), item.count);
        uint32_t count = 0;
        for (uint32_t i = begin + lane % kWarp; i < end; i += kWarp) count += cut.Keeps(OrderedBits(item.scores[i]), i);
        block.AtomicAdd(&s.counts[part], count);
      }
    });
    block.Lanes([&](int lane) {
      if (lane != 0) return;
      uint32_t before = 0;
      for (int part = 0; part < kSelectParts; ++part) {
        item.state->part_begin[part] = before;
        before += s.counts[part];
      }
      item.state->value = cut.value;
      item.state->last_tie = cut.last_tie;
    });
  }
};

// Grid: (kSelectParts, items).
struct PlaceBody {
  using Shared = PrefixShared;
  template <typename Block>
  SEINE_BODY static void Run(Block& block, Shared& s, const SelectArgs& args) {
    const SelectItem& item = args.items[block.index().y];
    const uint32_t begin = block.index().x * item.part(), end = Least(begin + item.part(), item.count);
    if (begin >= end) return;
    const FirstCut cut = {item.state->value, item.state->last_tie};
    uint32_t* places = item.places + item.state->part_begin[block.index().x];
    Compact(
        block, s, end - begin, [&](uint32_t i) { return cut.Keeps(OrderedBits(item.scores[begin + i]), begin + i); },
        [&](uint32_t i, uint32_t place) { places[place] = begin + i; });
  }
};

template <typename Run>
void ForEachKernel(const SelectArgs& args, Run run) {
  run(CutBody(), BlockIndex{args.num_items, 1}, Lanes<kCutLanes>());
  run(PlaceBody(), BlockIndex{kSelectParts, args.num_items}, Lanes<kPlaceLanes>());
}

}  // namespace seine::cuda

#endif  // SEINE_KERNELS_OPS_SCORE_KEYS_RETAIN_CUDA_H_
