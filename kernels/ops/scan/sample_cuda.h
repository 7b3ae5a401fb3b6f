// The end of a query's preparation: scores of windows spread over the zone, and the threshold that lets a little more
// than the wanted share of keys through. The threshold decides no answer: what is found is cut exactly afterwards. The
// query's tables are read from the shared memory that they were made in.
#ifndef SEINE_KERNELS_OPS_SCAN_SAMPLE_CUDA_H_
#define SEINE_KERNELS_OPS_SCAN_SAMPLE_CUDA_H_

#include <cmath>
#include <cstdint>

#include "kernels/cuda/block.h"
#include "kernels/ops/query/code_reader.h"
#include "kernels/ops/query/query_cuda.h"
#include "kernels/ops/query/search_items.h"
#include "kernels/ops/scan/collision.h"
#include "kernels/ops/scan/target_cut_cuda.h"
#include "kernels/ops/select/block_select_cuda.h"

namespace seine::cuda {

inline constexpr int kSampleLanes = kPrepareLanes;
static_assert(kSampleLanes == kMomentLanes && kSampleLanes == kTargetLanes);

// The place in the descending sample whose score is the threshold. The sample's size or more: everything is let
// through.
SEINE_HD inline int64_t SampledPlace(int64_t wanted, int64_t num_keys, int64_t sample_keys) {
  const double share = static_cast<double>(wanted) / static_cast<double>(num_keys);
  return static_cast<int64_t>(ThresholdPlace(share * static_cast<double>(sample_keys)));
}

struct SampleShared {
  uint32_t scores[kSampleWindows * kWindowTokens];  // ordered bits
  Window windows[kSampleWindows];
  float bases[kSampleWindows];
  int32_t dots[kSampleWindows];  // <query8, centre>
  union {                        // one after another
    float factors[kSampleWindows * kFactorKeys];
    double moments[2][kMomentLanes];
    RadixShared radix;
  };
  TargetShared target;
};

// Finds the spread of the sampled scores and factors, which a recall target is predicted from.
template <typename Block>
SEINE_BODY void FindSpread(Block& block, SampleShared& s, uint32_t windows, const QueryPlan& q) {
  block.Lanes([&](int lane) {
    for (uint32_t i = lane; i < windows * kFactorKeys; i += kSampleLanes) {
      const Window& w = s.windows[i / kFactorKeys];
      s.factors[i] = DecodeFactor(w.factor[i % kFactorKeys], w.factor_base);
    }
  });
  block.Lanes([&](int lane) {
    if (lane >= kFactorKeys) return;
    float sum = 0;
    for (uint32_t i = 0; i < windows; ++i) sum = sum + s.factors[i * kFactorKeys + lane];
    s.target.lanes[lane] = sum;
  });
  block.Lanes([&](int lane) {
    double sum = 0, squares = 0;
    for (uint32_t i = lane; i < windows * kWindowTokens; i += kSampleLanes) {
      const double score = static_cast<double>(OrderedFloat(s.scores[i]));
      sum = sum + score;
      squares = squares + score * score;
    }
    s.moments[0][lane] = sum;
    s.moments[1][lane] = squares;
  });
  for (int half = kMomentLanes / 2; half > 0; half /= 2) {
    block.Lanes([&](int lane) {
      const int row = lane / half, i = lane % half;
      if (row < 2) s.moments[row][i] = s.moments[row][i] + s.moments[row][i + half];
    });
  }
  block.Lanes([&](int lane) {
    if (lane != 0) return;
    const float factor = TreeOf(s.target.lanes) / static_cast<float>(windows * kFactorKeys);
    s.target.spread = SpreadOf(q.state->noise * factor, s.moments[0][0], s.moments[1][0],
                               static_cast<double>(windows * kWindowTokens));
    q.state->spread = s.target.spread;
  });
}

// SampledPlace where as many keys are wanted as the sample has above the target's cut.
template <typename Block>
SEINE_BODY int64_t TargetedPlace(Block& block, SampleShared& s, const SearchArgs& args, const SearchItem& item,
                                 const QueryPlan& q, uint32_t windows) {
  const uint32_t keys = windows * kWindowTokens, best = SampledBest(args.params.top_k, item.num_keys, keys);
  FindSpread(block, s, windows, q);
  const auto get = [&](uint32_t i, uint32_t* value) {
    *value = s.scores[i];
    return true;
  };
  const float cut = FindTargetCut(block, s.radix, s.target, q.best, keys, Least(best, keys), args.params, get);
  const uint32_t above = CountAbove(block, s.target, cut, keys, get);
  const int64_t wanted = static_cast<int64_t>(above) * item.num_keys / keys;
  return SampledPlace(Most<int64_t>(item.wanted, Least<int64_t>(item.most, wanted)), item.num_keys, keys);
}

// s.windows and s.bases (code_reader.h, WindowBase) of the sampled windows: several lanes a window.
template <typename Block>
SEINE_BODY void LoadWindows(Block& block, SampleShared& s, const PrepareShared& prepared, const SearchItem& item,
                            const QueryPlan& q, const SampleShape& shape) {
  constexpr int kShare = kSampleLanes / static_cast<int>(kSampleWindows);
  block.Lanes([&](int lane) {
    if (lane >= static_cast<int>(shape.count)) return;
    s.windows[lane] = WindowOf(item, SampledWindow(shape, static_cast<uint32_t>(lane)));
    s.dots[lane] = 0;
  });
  block.Lanes([&](int lane) {
    const int window = lane / kShare, words = item.layout.head_dim / 4;
    if (window >= static_cast<int>(shape.count) || s.windows[window].centre == nullptr) return;
    int32_t dot = 0;
    for (int word = lane % kShare; word < words; word += kShare) {
      dot = Dot4(LoadWord(s.windows[window].centre + word * 4), prepared.query8[word], dot);
    }
    block.AtomicAdd(&s.dots[window], dot);
  });
  block.Lanes([&](int lane) {
    if (lane >= static_cast<int>(shape.count)) return;
    const Window& w = s.windows[lane];
    s.bases[lane] = w.centre == nullptr ? q.state->shared_base
                                        : static_cast<float>(s.dots[lane]) * (w.centre_scale * CentreUnit(*q.state));
  });
}

// CoarseSum of sign_ip from a query's own entries.
SEINE_BODY inline int32_t NibbleSumOf(const PrepareShared& prepared, int bytes, const Window& w, int key) {
  int32_t sum = -2 * kTableBias * bytes;
  for (int g = 0; g < bytes / 4; ++g) {
    const uint32_t word = CoarseWord(w, bytes, key, g);
    for (int b = 0; b < 4; ++b) {
      const uint8_t* entries = prepared.entries + (g * 4 + b) * 32;
      const uint32_t code = word >> (b * 8) & 255;
      sum += entries[code & 15] + entries[16 + (code >> 4)];
    }
  }
  return sum;
}

// No threshold is lower: keys that do not collide are no candidates unless all are.
SEINE_BODY inline float ThresholdFloor(const SearchArgs& args, const SearchItem& item) {
  return LeavesOut(args.params, item) ? kLeastCollision : -INFINITY;
}
template <typename Block>
SEINE_BODY void SetThreshold(Block& block, const QueryPlan& q, float threshold) {
  block.Lanes([&](int lane) {
    if (lane == 0) q.state->threshold = threshold;
  });
}

// q.state->threshold, after the query's tables.
template <typename Block>
SEINE_BODY void MakeThreshold(Block& block, SampleShared& s, const PrepareShared& prepared, const SearchArgs& args,
                              const SearchItem& item, const QueryPlan& q) {
  const bool collision = args.params.coarse == Coarse::kCollision, by_target = args.params.recall_target > 0;
  const SampleShape shape = SampleOf(item.num_keys);
  const uint32_t keys = shape.count * kWindowTokens;
  const float floor = ThresholdFloor(args, item);
  int64_t place = SampledPlace(item.wanted, item.num_keys, keys);
  if (!by_target && place >= keys) return SetThreshold(block, q, floor);
  LoadWindows(block, s, prepared, item, q, shape);
  block.Lanes([&](int lane) {
    for (uint32_t i = lane; i < keys; i += block.num_lanes()) {
      const Window& w = s.windows[i / kWindowTokens];
      const int key = i % kWindowTokens;
      const int32_t sum =
          collision ? CoarseSum(item, true, q.place, w, key) : NibbleSumOf(prepared, item.layout.coarse_bytes, w, key);
      s.scores[i] = OrderedBits(CoarseScore(collision, sum, s.bases[i / kWindowTokens], w, key));
    }
  });
  if (by_target) place = TargetedPlace(block, s, args, item, q, shape.count);
  if (place >= keys) return SetThreshold(block, q, floor);
  const Cut32 cut = FindCut32(block, s.radix, keys, static_cast<uint32_t>(place) + 1, [&](uint32_t i, uint32_t* value) {
    *value = s.scores[i];
    return true;
  });
  SetThreshold(block, q, Most(floor, OrderedFloat(cut.value)));
}

}  // namespace seine::cuda

#endif  // SEINE_KERNELS_OPS_SCAN_SAMPLE_CUDA_H_
