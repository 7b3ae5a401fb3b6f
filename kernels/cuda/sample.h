// Second step, a block a query: scores of windows spread over the zone, and the threshold that lets a little more than
// the wanted share of keys through. The threshold decides no answer: what is found is cut exactly afterwards.
#ifndef SEINE_KERNELS_CUDA_SAMPLE_H_
#define SEINE_KERNELS_CUDA_SAMPLE_H_

#include <cmath>
#include <cstdint>

#include "kernels/cuda/block.h"
#include "kernels/cuda/block_select.h"
#include "kernels/cuda/code_reader.h"
#include "kernels/cuda/search_items.h"

namespace seine::cuda {

inline constexpr int kSampleLanes = 512;
inline constexpr int kSampleWindows = 128;

// The windows of a zone's sample: every stride-th from the middle of the first stride on.
struct SampleShape {
  uint32_t stride, count;  // of windows
};
SEINE_HD inline SampleShape SampleOf(int64_t num_keys) {
  const uint32_t windows = static_cast<uint32_t>(num_keys / kWindowTokens);
  const uint32_t stride = (windows + kSampleWindows - 1) / kSampleWindows;
  return {stride, stride == 0 ? 0 : (windows - stride / 2 + stride - 1) / stride};
}

// The place in the descending sample whose score is the threshold: 1.2 times the wanted share and three standard
// deviations of its count more, so that a rescan is rare. The sample's size or more: everything is let through.
SEINE_HD inline int64_t ThresholdPlace(int64_t wanted, int64_t num_keys, int64_t sample_keys) {
  const double rank = static_cast<double>(wanted) / static_cast<double>(num_keys) * static_cast<double>(sample_keys);
  return static_cast<int64_t>(1.2 * rank + 3 * sqrt(rank));
}

struct SampleShared {
  uint32_t scores[kSampleWindows * kWindowTokens];  // ordered bits
  Window windows[kSampleWindows];
  float bases[kSampleWindows];
  RadixShared radix;
};

// Grid: (group, items).
struct SampleBody {
  using Shared = SampleShared;
  template <typename Block>
  SEINE_BODY static void Run(Block& block, Shared& s, const SearchArgs& args) {
    const SearchItem& item = args.items[block.index().y];
    if (block.index().x >= item.group || item.num_keys == 0) return;
    const QueryPlan& q = args.queries[item.first_query + block.index().x];
    const bool collision = args.params.coarse == Coarse::kCollision;
    const SampleShape shape = SampleOf(item.num_keys);
    const uint32_t keys = shape.count * kWindowTokens;
    const int64_t place = ThresholdPlace(item.wanted, item.num_keys, keys);
    if (place >= keys) {
      block.Lanes([&](int lane) {
        if (lane == 0) q.state->threshold = -INFINITY;
      });
      return;
    }
    block.Lanes([&](int lane) {
      for (uint32_t i = lane; i < shape.count; i += block.num_lanes()) {
        s.windows[i] = WindowOf(item, shape.stride / 2 + i * shape.stride);
        s.bases[i] = WindowBase(item, s.windows[i], q.query8, *q.state);
      }
    });
    block.Lanes([&](int lane) {
      for (uint32_t i = lane; i < keys; i += block.num_lanes()) {
        const Window& w = s.windows[i / kWindowTokens];
        const int key = i % kWindowTokens;
        const int32_t sum = CoarseSum(item, collision, q.place, w, key);
        s.scores[i] = OrderedBits(CoarseScore(collision, sum, s.bases[i / kWindowTokens], w, key));
      }
    });
    const Cut32 cut =
        FindCut32(block, s.radix, keys, static_cast<uint32_t>(place) + 1, [&](uint32_t i, uint32_t* value) {
          *value = s.scores[i];
          return true;
        });
    block.Lanes([&](int lane) {
      if (lane == 0) q.state->threshold = OrderedFloat(cut.value);
    });
  }
};

}  // namespace seine::cuda

#endif  // SEINE_KERNELS_CUDA_SAMPLE_H_
