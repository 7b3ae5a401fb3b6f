#include "index/quality/predicted_recall.h"

#include <algorithm>
#include <cmath>

#include "kernels/host.h"
#include "kernels/types.h"

namespace seine {

namespace {

constexpr int kBins = 256;
constexpr int kHalvings = 20;

// The normal distribution function, absolute error below 2e-4 (kernels/ops/query/recall_target.h has the source).
double NormalShare(double z) { return 1 / (1 + std::exp(-(.07056 * z * z + 1.5976) * z)); }

// Mean variance of the logits within windows of 64: about their centres, which a codec with window centres knows.
double VarianceInWindows(const float* x, int64_t n) {
  double sum = 0;
  int64_t windows = 0;
  for (int64_t w = 0; w + kWindowTokens <= n; w += kWindowTokens, ++windows) {
    double total = 0, squares = 0;
    for (int64_t i = w; i < w + kWindowTokens; ++i) {
      total += static_cast<double>(x[i]);
      squares += static_cast<double>(x[i]) * static_cast<double>(x[i]);
    }
    sum += squares / kWindowTokens - (total / kWindowTokens) * (total / kWindowTokens);
  }
  return windows > 0 ? std::max(sum / static_cast<double>(windows), 0.0) : 0;
}

// Logits of a zone in bins of one width.
struct Bins {
  double low = 0, width = 0;
  std::vector<double> keys = std::vector<double>(kBins);  // in each
  double Middle(int bin) const { return low + (bin + .5) * width; }
};

Bins BinsOf(const float* x, int64_t n) {
  Bins bins;
  float low = 0, high = 0;
  host::Range(x, static_cast<size_t>(n), &low, &high);
  bins.low = static_cast<double>(low);
  bins.width = std::max((static_cast<double>(high) - bins.low) / kBins, 1e-12);
  for (int64_t i = 0; i < n; ++i) {
    ++bins.keys[std::min(static_cast<int>((static_cast<double>(x[i]) - bins.low) / bins.width), kBins - 1)];
  }
  return bins;
}

// Returns the estimate above which `wanted` keys are expected, where estimates have this error.
double CutOf(const Bins& bins, double deviation, double wanted) {
  double low = bins.low - 8 * deviation, high = bins.Middle(kBins) + 8 * deviation;
  for (int i = 0; i < kHalvings; ++i) {
    const double cut = (low + high) / 2;
    double above = 0;
    for (int b = 0; b < kBins; ++b) above += bins.keys[b] * NormalShare((bins.Middle(b) - cut) / deviation);
    (above > wanted ? low : high) = cut;
  }
  return low;
}

// The probability that a key of a given logit outlives the scan and the rerank of one query.
class Stages {
 public:
  Stages(const QualitySample::Head& head, const SearchParams& params, const float* zone) {
    const double variance = VarianceInWindows(zone, head.zone_keys);
    Bins bins = BinsOf(zone, head.zone_keys);
    Add(std::sqrt(head.noise * variance), head.candidates, &bins);
    Add(std::sqrt(head.fine_noise * variance), std::max(params.rescore_k, params.top_k), &bins);
  }
  double Survival(double logit) const {
    double share = 1;
    for (const Stage& stage : stages_) share *= NormalShare((logit - stage.cut) / stage.deviation);
    return share;
  }

 private:
  struct Stage {
    double deviation, cut;
  };
  // A stage that keeps `wanted` of the keys that are left in `bins`, and those left after it.
  void Add(double deviation, double wanted, Bins* bins) {
    double held = 0;
    for (const double keys : bins->keys) held += keys;
    if (!(deviation > 0) || wanted >= held - .5) return;
    const Stage stage = {deviation, CutOf(*bins, deviation, wanted)};
    for (int b = 0; b < kBins; ++b) bins->keys[b] *= NormalShare((bins->Middle(b) - stage.cut) / deviation);
    stages_.push_back(stage);
  }
  std::vector<Stage> stages_;
};

}  // namespace

double PredictedRecall(const QualitySample::Head& head, const SearchParams& params,
                       const std::vector<const float*>& logits, const std::vector<uint32_t>& exact) {
  std::vector<double> lost(exact.size(), 1);  // the probability that no query of the group finds it
  for (const float* of_query : logits) {
    const float* const zone = of_query + head.zone_begin;
    const Stages stages(head, params, zone);
    for (size_t i = 0; i < exact.size(); ++i) lost[i] *= 1 - stages.Survival(static_cast<double>(zone[exact[i]]));
  }
  double found = 0;
  for (const double one : lost) found += 1 - one;
  return exact.empty() ? 1 : found / static_cast<double>(exact.size());
}

}  // namespace seine
