#include "kernels/ops/mass/zone_mass_cpu.h"

#include <algorithm>
#include <cstdint>

#include "kernels/math.h"
#include "kernels/ops/mass/mass_ops.h"
#include "kernels/ops/query/zone_mass.h"
#include "kernels/ops/rows/rows.h"
#include "kernels/ops/select/select.h"

namespace seine::cpu {

void LogSumExp::Add(const float* x, size_t n, float scale) {
  if (n == 0) return;
  float smallest, largest;
  Range(x, n, &smallest, &largest);
  largest *= scale;
  if (largest > max_) {
    const float shrink = ExpNonPositive(max_ - largest);
    for (float& lane : lanes_) lane *= shrink;
    max_ = largest;
  }
  SumExp(x, n, scale, max_, lanes_);
}

float LogSumExp::Value() const {
  float sum = 0;
  for (const float lane : lanes_) sum += lane;
  return sum > 0 ? max_ + LogPositive(sum) : -INFINITY;
}

namespace {

// The sampled keys that are candidates: place in the sample, place in `chosen`. Nothing foretells which of a few
// candidates these are, so every one is written down, and the next one over it where it is none.
void FindAmongFew(const MassSample& sample, QueryWork* w) {
  constexpr int kShift = 40;
  const uint64_t stride = sample.windows.stride, inverse = (uint64_t{1} << kShift) / stride + 1;
  w->sampled.resize(w->chosen.size() + 1);
  size_t size = 0;
  for (uint32_t c = 0; c < w->chosen.size(); ++c) {
    const uint32_t key = w->found.index[w->chosen[c]], window = key / kWindowTokens;
    const auto i = static_cast<uint32_t>(window * inverse >> kShift);  // window / stride
    const uint32_t row = key % kWindowTokens - sample.first(i);
    w->sampled[size] = {(i << sample.shift) + row, c};
    size += static_cast<size_t>(sample.window(i) == window) * static_cast<size_t>(row < sample.keys());
  }
  w->sampled.resize(size);
}

// The same where hundreds of candidates lie between two sampled windows: both lists ascend.
void FindAmongMany(const MassSample& sample, QueryWork* w) {
  constexpr size_t kStep = 16;
  const size_t n = w->chosen.size();
  const auto key_of = [&](size_t c) { return w->found.index[w->chosen[c]]; };
  w->sampled.clear();
  for (uint32_t i = 0, c = 0; i < sample.windows.count; ++i) {
    const uint32_t begin = sample.window(i) * kWindowTokens + sample.first(i), end = begin + sample.keys();
    while (c + kStep < n && key_of(c + kStep) < begin) c += kStep;
    while (c < n && key_of(c) < begin) ++c;
    for (; c < n && key_of(c) < end; ++c) w->sampled.push_back({(i << sample.shift) + (key_of(c) - begin), c});
  }
}

void FindSampledChosen(const MassSample& sample, QueryWork* w) {
  constexpr size_t kFew = 2048;
  return w->chosen.size() < kFew ? FindAmongFew(sample, w) : FindAmongMany(sample, w);
}

}  // namespace

void FindFactors(const SearchTask& task, SampleFactors* out) {
  const MassSample sample = MassSampleOf(task.num_keys);
  out->values.resize(sample.size());
  float squares[kMassLanes] = {0}, *values = out->values.data();
  const auto segment_keys = static_cast<uint32_t>(task.segment_keys);
  for (uint32_t i = 0; i < sample.windows.count; ++i) {
    const uint32_t first = sample.window(i) * kWindowTokens, segment = first / segment_keys;
    const ConstCodePlanes& planes = task.segments[segment];
    const uint32_t key = first - segment * segment_keys, base = planes.factor_base[key / kWindowTokens];
    const uint8_t* codes = planes.factor + key + sample.first(i);
    for (uint32_t row = 0; row < sample.keys(); row += kMassLanes, values += kMassLanes) {
      for (uint32_t j = 0; j < kMassLanes; ++j) {
        const float f = DecodeFactor(codes[row + j], base);
        values[j] = f;
        squares[j] = squares[j] + f * f;
      }
    }
  }
  out->squares = TreeOf(squares);
}

void AddUnscored(const SearchTask& task, float scale, const SampleFactors& factors, QueryWork* w, LogSumExp* lse) {
  const MassSample sample = MassSampleOf(task.num_keys);
  const float *scores = w->sample.data(), *bases = w->sample_bases.data();
  const MassRows rows = {scores, factors.values.data(), bases, sample.size(), sample.shift};
  float e[kMassLanes], squares[kMassLanes];
  SumResiduals(rows, e, squares);
  MassModel model = MassModelOf(scale * w->prepared.coarse_step, task.codec->PredictErrors(w->prepared),
                                {TreeOf(e), TreeOf(squares), factors.squares}, rows.size);
  for (size_t c = 0; c < w->chosen.size(); ++c) {
    w->estimates[c] = model.FineLogit(w->found.base[w->chosen[c]], w->estimates[c] * scale);
  }
  FindSampledChosen(sample, w);
  const auto chosen = static_cast<uint32_t>(w->sampled.size());
  float excess[kMassLanes] = {0};
  for (const auto& [i, c] : w->sampled) {
    const float base = bases[i >> sample.shift];
    excess[i % kMassLanes] = excess[i % kMassLanes] + (w->estimates[c] - model.Logit(base, scores[i] - base));
  }
  if (chosen < rows.size && w->chosen.size() < static_cast<size_t>(task.num_keys)) {
    SetRest(static_cast<uint32_t>(task.num_keys - w->chosen.size()), rows.size, chosen, TreeOf(excess), &model);
    w->scratch.resize(rows.size);
    Exponents(rows, model, w->scratch.data());
    for (const auto& [i, c] : w->sampled) w->scratch[i] = -INFINITY;
    lse->Add(w->scratch.data(), rows.size, 1.0f);
  }
  if (w->survivors.size() == w->chosen.size()) return;
  for (float& estimate : w->estimates) estimate = estimate + model.fine_growth;
  for (const uint32_t s : w->survivors) w->estimates[s] = -INFINITY;
  lse->Add(w->estimates.data(), w->estimates.size(), 1.0f);
}

}  // namespace seine::cpu
