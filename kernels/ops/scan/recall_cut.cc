#include "kernels/ops/scan/recall_cut.h"

#include <algorithm>
#include <cstdint>
#include <functional>

#include "kernels/math.h"
#include "kernels/ops/select/select.h"

namespace seine::cpu {

float MeanFactor(const SearchTask& task) {
  const SampleShape shape = SampleOf(task.num_keys);
  float lanes[kFactorKeys] = {0};
  for (uint32_t i = 0; i < shape.count; ++i) {
    const int64_t first = int64_t{SampledWindow(shape, i)} * kWindowTokens;
    const ConstCodePlanes& planes = task.segments[first / task.segment_keys];
    const int64_t key = first % task.segment_keys;
    const uint32_t base = planes.factor_base[key / kWindowTokens];
    for (int j = 0; j < kFactorKeys; ++j) lanes[j] = lanes[j] + DecodeFactor(planes.factor[key + j], base);
  }
  return TreeOf(lanes) / static_cast<float>(shape.count * kFactorKeys);
}

ScoreSpread SpreadOfSample(const SearchTask& task, const QueryWork& work, float mean_factor,
                           const std::vector<float>& sample) {
  double sums[kMomentLanes] = {0}, squares[kMomentLanes] = {0};
  for (size_t first = 0; first < sample.size(); first += kMomentLanes) {
    const size_t count = std::min<size_t>(kMomentLanes, sample.size() - first);
    for (size_t i = 0; i < count; ++i) {
      const double score = static_cast<double>(sample[first + i]);
      sums[i] = sums[i] + score;
      squares[i] = squares[i] + score * score;
    }
  }
  for (int half = kMomentLanes / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) {
      sums[i] = sums[i] + sums[i + half];
      squares[i] = squares[i] + squares[i + half];
    }
  }
  return SpreadOf(task.codec->CoarseNoise(work.prepared) * mean_factor, sums[0], squares[0],
                  static_cast<double>(sample.size()));
}

float CutOf(const ScoreSpread& spread, const float* scores, size_t n, size_t k, double target,
            std::vector<float>* scratch) {
  std::vector<uint32_t> places;
  SelectLargest(scores, n, std::min(k, n), scratch, &places);
  std::vector<float> best(places.size());
  for (size_t i = 0; i < places.size(); ++i) best[i] = scores[places[i]];
  std::sort(best.begin(), best.end(), std::greater<>());
  float x[kTargetPlaces];
  for (int i = 0; i < kTargetPlaces; ++i) {
    x[i] = TrueScore(spread, best[TargetPlace(i, static_cast<uint32_t>(best.size()))]);
  }
  return TargetCut(spread.noise, x, static_cast<float>(target), [](auto term) {
    float lanes[kTargetPlaces];
    for (int i = 0; i < kTargetPlaces; ++i) lanes[i] = term(i);
    return TreeOf(lanes);
  });
}

size_t MostCandidates(const SearchTask& task, size_t wanted) {
  return std::max(wanted, static_cast<size_t>(kMostCandidates * static_cast<double>(task.num_keys)));
}

double SampledShare(const SearchTask& task, const SearchParams& params, size_t wanted, const ScoreSpread& spread,
                    const std::vector<float>& sample, std::vector<float>* scratch) {
  const size_t n = sample.size();
  const size_t best = SampledBest(params.top_k, task.num_keys, static_cast<uint32_t>(n));
  const float cut = CutOf(spread, sample.data(), n, best, params.recall_target, scratch);
  const double keys = static_cast<double>(task.num_keys);
  return std::clamp(static_cast<double>(CountAbove(sample.data(), n, cut)) / static_cast<double>(n),
                    static_cast<double>(wanted) / keys, static_cast<double>(MostCandidates(task, wanted)) / keys);
}

}  // namespace seine::cpu
