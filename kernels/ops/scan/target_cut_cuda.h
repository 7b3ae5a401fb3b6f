// The cut of a recall target (kernels/ops/query/recall_target.h) by the lanes of a block: the best scores, the sixteen
// places that stand for them, and the halvings.
#ifndef SEINE_KERNELS_OPS_SCAN_TARGET_CUT_CUDA_H_
#define SEINE_KERNELS_OPS_SCAN_TARGET_CUT_CUDA_H_

#include <cstdint>

#include "kernels/cuda/block.h"
#include "kernels/ops/query/recall_target.h"
#include "kernels/ops/query/search.h"
#include "kernels/ops/select/block_select_cuda.h"

namespace seine::cuda {

inline constexpr int kTargetLanes = kTargetPlaces * kWarp;  // a warp a place

struct TargetShared {
  ScoreSpread spread;  // whoever calls sets it
  float x[kTargetPlaces], lanes[kTargetPlaces];
  float sum;
  uint32_t count;
};

// s.x: the true scores that the k best of the values get(i), i < n, stand for, at the sixteen places. A warp has the
// value of its place bit by bit, by counting. best[k]: the caller's.
template <typename Block, typename Get>
SEINE_BODY void FindTargetPlaces(Block& block, RadixShared& radix, TargetShared& s, uint32_t* best, uint32_t n,
                                 uint32_t k, Get get) {
  const Cut32 cut = FindCut32(block, radix, n, k, get);
  const uint32_t above = k - cut.ties;
  block.Lanes([&](int lane) {
    for (int i = lane; i < kTargetPlaces * 32; i += kTargetLanes) radix.bins[i] = 0;
    if (lane == 0) s.count = 0;
  });
  block.Lanes([&](int lane) {
    for (uint32_t i = lane; i < n; i += kTargetLanes) {
      uint32_t value;
      if (get(i, &value) && value > cut.value) best[block.AtomicAdd(&s.count, 1u)] = value;
    }
    for (uint32_t i = above + lane; i < k; i += kTargetLanes) best[i] = cut.value;
  });
  typename Block::template Local<uint32_t> value(block);
  block.Warps([&](int lane) { value[lane] = 0; });
  for (int bit = 31; bit >= 0; --bit) {
    block.Warps([&](int lane) {
      const uint32_t tried = value[lane] | 1u << bit;
      uint32_t count = 0;
      for (uint32_t i = lane % kWarp; i < k; i += kWarp) count += best[i] >= tried;
      block.AtomicAdd(&radix.bins[bit * kTargetPlaces + lane / kWarp], count);
    });
    block.Warps([&](int lane) {
      const int place = lane / kWarp;
      if (radix.bins[bit * kTargetPlaces + place] > TargetPlace(place, k)) value[lane] |= 1u << bit;
    });
  }
  block.Lanes([&](int lane) {
    if (lane % kWarp == 0) s.x[lane / kWarp] = TrueScore(s.spread, OrderedFloat(value[lane]));
  });
}

// The cut, from the k best of the values: ordered bits of scores.
template <typename Block, typename Get>
SEINE_BODY float FindTargetCut(Block& block, RadixShared& radix, TargetShared& s, uint32_t* best, uint32_t n,
                               uint32_t k, const SearchParams& params, Get get) {
  FindTargetPlaces(block, radix, s, best, n, k, get);
  return TargetCut(s.spread.noise, s.x, static_cast<float>(params.recall_target), [&](auto term) {
    block.Lanes([&](int lane) {
      if (lane < kTargetPlaces) s.lanes[lane] = term(lane);
    });
    block.Lanes([&](int lane) {
      if (lane == 0) s.sum = TreeOf(s.lanes);
    });
    return block.Read(s.sum);
  });
}

// How many of the values lie above the cut.
template <typename Block, typename Get>
SEINE_BODY uint32_t CountAbove(Block& block, TargetShared& s, float cut, uint32_t n, Get get) {
  block.Lanes([&](int lane) {
    if (lane == 0) s.count = 0;
  });
  block.Lanes([&](int lane) {
    uint32_t count = 0;
    for (uint32_t i = lane; i < n; i += kTargetLanes) {
      uint32_t value;
      count += get(i, &value) && value > OrderedBits(cut);
    }
    if (count > 0) block.AtomicAdd(&s.count, count);
  });
  return block.Read(s.count);
}

}  // namespace seine::cuda

#endif  // SEINE_KERNELS_OPS_SCAN_TARGET_CUT_CUDA_H_
