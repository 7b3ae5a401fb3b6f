// The exact set of each selector, and what a set holds of it.
#include "index/quality/judge.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "index/quality/predicted_recall.h"
#include "kernels/host.h"

namespace seine {

namespace {

constexpr int kLanes = 16;  // host::SumExp's

// log sum e^x over x[0, n), n >= 1.
double LogSumExp(const float* x, int64_t n) {
  float low = 0, high = 0;
  host::Range(x, static_cast<size_t>(n), &low, &high);
  // In pieces, whose fp32 sums lose nothing that matters.
  constexpr int64_t kPiece = 4096;
  double sum = 0;
  for (int64_t i = 0; i < n; i += kPiece) {
    float lanes[kLanes] = {};
    host::SumExp(x + i, static_cast<size_t>(std::min(kPiece, n - i)), 1.0f, high, lanes);
    sum += std::accumulate(lanes, lanes + kLanes, 0.0);
  }
  return static_cast<double>(high) + std::log(sum);
}

// The queries that share a set, and their logits.
struct Sharers {
  std::vector<const float*> logits;  // each [head.size]
  std::vector<double> full;          // log-sum-exps over all that is held
};

// Those of each set of a head.
std::vector<Sharers> SharersOf(const QualitySample::Head& head, const SearchParams& params, int group,
                               const std::vector<float>& logits) {
  std::vector<Sharers> sets;
  const int shared_by = params.scope == Scope::kPerKvHead ? group : 1;
  for (int first = 0; first < group; first += shared_by) {
    Sharers& sharers = sets.emplace_back();
    for (int g = first; g < first + shared_by; ++g) {
      sharers.logits.push_back(logits.data() + g * head.size);
      sharers.full.push_back(LogSumExp(sharers.logits.back(), head.size));
    }
  }
  return sets;
}

// One score a key of the zone, by which the set is chosen.
std::vector<float> Combined(const QualitySample::Head& head, const SearchParams& params, const Sharers& sharers) {
  const auto n = static_cast<size_t>(head.zone_keys);
  const bool alone = sharers.logits.size() == 1;
  const float* const first = sharers.logits[0] + head.zone_begin;
  if (alone && (params.scope == Scope::kPerQHead || params.gqa_reduce != GqaReduce::kSoftmaxSum))
    return {first, first + n};
  std::vector<float> combined(n, params.gqa_reduce == GqaReduce::kMax ? -std::numeric_limits<float>::infinity() : 0.0f);
  const float share = 1.0f / static_cast<float>(sharers.logits.size());
  for (size_t g = 0; g < sharers.logits.size(); ++g) {
    const float* const l = sharers.logits[g] + head.zone_begin;
    if (params.gqa_reduce == GqaReduce::kSoftmaxSum) {
      host::AddExp(l, n, static_cast<float>(sharers.full[g]), 1.0f, combined.data());
      continue;
    }
    for (size_t i = 0; i < n; ++i) {
      combined[i] = params.gqa_reduce == GqaReduce::kMean ? combined[i] + l[i] * share : std::max(combined[i], l[i]);
    }
  }
  return combined;
}

// mass_p: cuts `order`, keys of the zone, to the fewest whose mean mass of the zone reaches p.
void CutByMass(const QualitySample::Head& head, const SearchParams& params, const Sharers& sharers,
               const std::vector<float>& combined, std::vector<uint32_t>* order) {
  std::vector<float> mass(static_cast<size_t>(head.zone_keys), 0.0f);
  for (const float* logits : sharers.logits) {
    const double zone = LogSumExp(logits + head.zone_begin, head.zone_keys);
    host::AddExp(logits + head.zone_begin, mass.size(), static_cast<float>(zone),
                 1.0f / static_cast<float>(sharers.logits.size()), mass.data());
  }
  std::sort(order->begin(), order->end(),
            [&](uint32_t a, uint32_t b) { return combined[a] != combined[b] ? combined[a] > combined[b] : a < b; });
  double sum = 0;
  size_t kept = 0;
  while (kept < order->size() &&
         (kept < static_cast<size_t>(params.mass_floor) || sum < static_cast<double>(params.mass_p))) {
    sum += static_cast<double>(mass[(*order)[kept++]]);
  }
  order->resize(kept);
  std::sort(order->begin(), order->end());
}

// Keys of the zone, ascending.
std::vector<uint32_t> ExactSet(const QualitySample::Head& head, const SearchParams& params, const Sharers& sharers) {
  const std::vector<float> combined = Combined(head, params, sharers);
  std::vector<float> scratch;
  std::vector<uint32_t> order;
  SelectLargest(combined.data(), combined.size(), static_cast<size_t>(params.top_k), &scratch, &order);
  if (params.mass_p > 0) CutByMass(head, params, sharers, combined, &order);
  return order;
}

double RecallOf(const std::vector<uint32_t>& exact, const std::vector<int32_t>& found, int64_t zone_begin) {
  size_t both = 0;
  for (const uint32_t key : exact) {
    both += std::binary_search(found.begin(), found.end(), static_cast<int32_t>(zone_begin + key)) ? 1 : 0;
  }
  return exact.empty() ? 1 : static_cast<double>(both) / static_cast<double>(exact.size());
}

// Mass of the exact set, less that of what was found.
double LostOf(const QualitySample::Head& head, const Sharers& sharers, const std::vector<uint32_t>& exact,
              const std::vector<int32_t>& found) {
  double lost = 0;
  for (size_t g = 0; g < sharers.logits.size(); ++g) {
    const auto weight = [&](int64_t place) {
      return std::exp(static_cast<double>(sharers.logits[g][place]) - sharers.full[g]);
    };
    for (const uint32_t key : exact) lost += weight(head.zone_begin + key);
    for (const int32_t place : found) lost -= weight(place);
  }
  return lost / static_cast<double>(sharers.logits.size());
}

double MassOf(const QualitySample::Head& head, const Sharers& sharers, const std::vector<int32_t>& found) {
  double sum = 0;
  for (size_t g = 0; g < sharers.logits.size(); ++g) {
    const float* const l = sharers.logits[g];
    const auto weight = [&](int64_t place) { return std::exp(static_cast<double>(l[place]) - sharers.full[g]); };
    for (int64_t place = 0; place < head.zone_begin; ++place) sum += weight(place);
    for (int64_t place = head.zone_begin + head.zone_keys; place < head.size; ++place) sum += weight(place);
    for (const int32_t place : found) sum += weight(place);
  }
  return sum / static_cast<double>(sharers.logits.size());
}

}  // namespace

void ScaleLogits(float scale, float softcap, std::vector<float>* dots) {
  for (float& x : *dots) x *= scale;
  if (softcap <= 0) return;
  for (float& x : *dots) x = softcap * std::tanh(x / softcap);
}

std::vector<SetQuality> Judge(const QualitySample::Head& head, const SearchParams& params, int group,
                              const std::vector<float>& logits) {
  std::vector<SetQuality> sets;
  for (const Sharers& sharers : SharersOf(head, params, group, logits)) {
    const std::vector<int32_t>& found = head.found[sets.size()];
    const std::vector<uint32_t> exact = ExactSet(head, params, sharers);
    SetQuality& set = sets.emplace_back();
    set.recall = RecallOf(exact, found, head.zone_begin);
    set.attention_mass = MassOf(head, sharers, found);
    set.lost = LostOf(head, sharers, exact, found);
    if (head.noise > 0) set.predicted_recall = PredictedRecall(head, params, sharers.logits, exact);
  }
  return sets;
}

std::vector<SetWeights> Weigh(const QualitySample::Head& head, const SearchParams& params, int group,
                              const std::vector<float>& logits) {
  std::vector<SetWeights> sets;
  for (const Sharers& sharers : SharersOf(head, params, group, logits)) {
    const auto mean = [&](int64_t place) {
      double sum = 0;
      for (size_t g = 0; g < sharers.logits.size(); ++g) {
        sum += std::exp(static_cast<double>(sharers.logits[g][place]) - sharers.full[g]);
      }
      return sum / static_cast<double>(sharers.logits.size());
    };
    const std::vector<int32_t>& found = head.found[sets.size()];
    SetWeights& set = sets.emplace_back();
    for (int64_t place = 0; place < head.zone_begin; ++place) set.sink += mean(place);
    for (int64_t place = head.zone_begin + head.zone_keys; place < head.size; ++place) set.local += mean(place);
    for (const int32_t place : found) set.found.push_back(static_cast<float>(mean(place)));
  }
  return sets;
}

}  // namespace seine
