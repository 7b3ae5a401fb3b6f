// SearchParams::recall_target as every backend computes it, to the same bits: the coarse score above which a query's
// true best keys lie with the wanted probability.
//
// Coarse scores are E = X + noise, X the true ones. The codec predicts the noise (Codec::CoarseNoise, times the mean
// factor of a sample of keys); what the sample's scores spread beyond it is X's. So the best scores of the zone, shrunk
// towards the mean, stand for the true best X, and a key of score X comes above a cut t with probability
// Phi((X - t) / noise). The cut is where the mean of that over the top_k is the target: the candidates are the keys
// above it, at least as many as without a target and at most kMostCandidates of the zone.
#ifndef SEINE_KERNELS_OPS_QUERY_RECALL_TARGET_H_
#define SEINE_KERNELS_OPS_QUERY_RECALL_TARGET_H_

#include <cmath>
#include <cstdint>

#include "kernels/math.h"
#include "kernels/types.h"

namespace seine {

// The windows of a zone's sample: every stride-th from the middle of the first stride on.
inline constexpr int kSampleWindows = 128;
struct SampleShape {
  uint32_t stride, count;  // of windows
};
SEINE_HD inline SampleShape SampleOf(int64_t num_keys) {
  const uint32_t windows = static_cast<uint32_t>(num_keys / kWindowTokens);
  const uint32_t stride = (windows + kSampleWindows - 1) / kSampleWindows;
  return {stride, stride == 0 ? 0 : (windows - stride / 2 + stride - 1) / stride};
}
// Index of its i-th window.
SEINE_HD inline uint32_t SampledWindow(const SampleShape& shape, uint32_t i) {
  return shape.stride / 2 + i * shape.stride;
}

// Where `rank` keys of a sample are wanted, the place in its descending scores whose score lets a little more through:
// 1.2 times as many, and three standard deviations of their count.
SEINE_HD inline double ThresholdPlace(double rank) { return 1.2 * rank + 3 * sqrt(rank); }

// How many of the sample's best scores stand for the zone's top_k.
inline constexpr int kLeastSampledBest = 4;
SEINE_HD inline uint32_t SampledBest(int top_k, int64_t num_keys, uint32_t sample_keys) {
  const int64_t share = static_cast<int64_t>(top_k) * sample_keys / num_keys;
  return static_cast<uint32_t>(share < kLeastSampledBest ? kLeastSampledBest : share);
}

// The sixteen places of the best k that stand for them all, evenly spread from the first to the last.
inline constexpr int kTargetPlaces = 16;
SEINE_HD inline uint32_t TargetPlace(int i, uint32_t k) {
  return static_cast<uint32_t>(static_cast<uint64_t>(i) * (k - 1) / (kTargetPlaces - 1));
}

// Sums of the sample: its keys' scores and their squares in fp64, score i in lane i mod 512, halves of the lanes added
// until one is left; factors of the first 16 keys of each window, key j in lane j, windows in order, by TreeOf.
inline constexpr int kMomentLanes = 512;
inline constexpr int kFactorKeys = 16;

// Sixteen lanes by the one tree: i and i + 8, then 4, 2 and 1 apart.
SEINE_HD inline float TreeOf(const float* lanes) {
  float eight[8];
  for (int i = 0; i < 8; ++i) eight[i] = lanes[i] + lanes[i + 8];
  for (int i = 0; i < 4; ++i) eight[i] = eight[i] + eight[i + 4];
  return (eight[0] + eight[2]) + (eight[1] + eight[3]);
}

// What the leading bits of a coordinate add to the square of a query's noise; `distortion` is 1 where it has none.
SEINE_HD inline float NoiseTerm(float transformed, float deviation, float distortion) {
  const float weight = transformed * deviation;
  return (weight * weight) * distortion;
}

struct ScoreSpread {
  float noise;   // standard deviation of E - X
  float mean;    // of the scores
  float shrink;  // of X's spread to E's
};
SEINE_HD inline ScoreSpread SpreadOf(float noise, double sum, double squares, double count) {
  const double mean = sum / count, variance = squares / count - mean * mean;
  ScoreSpread s = {noise, static_cast<float>(mean), 1.0f};
  if (!(variance > 0)) return s;
  const double left = 1 - static_cast<double>(noise) * static_cast<double>(noise) / variance;
  s.shrink = static_cast<float>(sqrt(left > 0 ? left : 0.0));
  return s;
}
SEINE_HD inline float TrueScore(const ScoreSpread& s, float estimate) {
  return s.mean + s.shrink * (estimate - s.mean);
}

// The normal distribution function, absolute error below 2e-4: 1 / (1 + e^-(.07056 z^3 + 1.5976 z)) (Bowling et al.,
// "A logistic approximation to the cumulative normal distribution", 2009). No library promises erfc's bits.
SEINE_HD inline float NormalShare(float z) {
  const float u = fabsf(z), e = ExpNonPositive(-((0.07056f * (u * u)) * u + 1.5976f * u)), share = 1.0f / (1.0f + e);
  return z < 0 ? e * share : share;
}

// The cut. x[16]: TrueScore of the best, descending. sum(term) gives the TreeOf term(i), i < 16, wherever it is called:
// a host's loop, or a block's lanes.
inline constexpr int kTargetHalvings = 14;
template <typename Sum>
SEINE_HD float TargetCut(float noise, const float* x, float target, Sum sum) {
  float low = x[kTargetPlaces - 1], high = x[0];
  if (!(noise > 0)) return low;
  const float inverse = 1.0f / noise;
  low = low - 6 * noise;
  high = high + 6 * noise;
  for (int i = 0; i < kTargetHalvings; ++i) {
    const float t = low + (high - low) * 0.5f;
    const float share = sum([&](int place) { return NormalShare((x[place] - t) * inverse); }) / kTargetPlaces;
    (share >= target ? low : high) = t;
  }
  return low;
}

}  // namespace seine

#endif  // SEINE_KERNELS_OPS_QUERY_RECALL_TARGET_H_
