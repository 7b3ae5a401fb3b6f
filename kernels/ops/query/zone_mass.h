// The softmax mass of a whole zone as a search estimates it, on every backend to the same bits: what SearchParams::
// mass_p and GqaReduce::kSoftmaxSum are measured against. The survivors count with the logits that they are scored by
// (exact where keys are stored), the other candidates with their fine estimates, and the rest of the zone, which no
// stage but the scan sees, with the coarse scores of a sample of it.
//
// A coarse score is E = base + e, base = <q, centre> and e an estimate of x = <q, k - centre> whose error the codec
// predicts (Codec::PredictErrors) as f a, added to what it sees of x, and f u, what it does not see; f the key's
// factor. e^E would count noise as mass, and e^base (what Attend's tail takes) leaves out how a window's keys spread:
// on real keys both miss a tenth of the zone and more. So a sampled key counts with its expected mass given its score.
// For normal e, in logits:
//   E[e^x | e] = exp(m + r (e - m) + s^2 / 2),  r = 1 - a^2 mean(f^2) / var(e),  s^2 = f^2 (r a^2 + u^2),  m = mean(e).
// That holds for keys that were chosen by e and for those that were not, so those that were chosen are simply left out.
// A candidate's fine estimate is turned into its expected mass in the same way, with the codec's own r and s. Two
// corrections:
// - A sum of n such terms has its mean only where s is below sqrt(2 ln n); beyond, its largest terms are too rare to be
//   met, and s^2 / 2 goes on as its tangent (Derrida's random energy model, Phys. Rev. B 24, 1981).
// - Of the sampled keys that are candidates the fine estimate is known. What its mean given the estimate exceeds
//   m + r (e - m) by on average is added to the rest too, times c / (c + 50) for c of them: two thirds of it for a
//   hundred, as the rest lies between those keys and the mean, where the model is right by its make.
//
// Error, on SmolLM2-135M's keys at a candidate_fraction of .05 with p from .5 to .95 (tests/bench/mass_test.cc): an
// answer's estimated mass is off by .002 to .008 (balanced) or .005 to .010 (rsq) on average, and the true mass of
// those that reach p is p at least on average, p - .011 in the worst head. The sample itself gives a standard error of
// about 1 / sqrt(2,048) of the rest, times the spread of its terms. Without centres the signs of all keys share an
// error that no average takes away: there the estimate is a guide.
#ifndef SEINE_KERNELS_OPS_QUERY_ZONE_MASS_H_
#define SEINE_KERNELS_OPS_QUERY_ZONE_MASS_H_

#include <cmath>
#include <cstdint>

#include "kernels/codecs/code.h"
#include "kernels/math.h"
#include "kernels/ops/query/recall_target.h"
#include "kernels/types.h"

namespace seine {

// The sampled keys: of each window of recall_target.h's sample a row of neighbours, a different one from window to
// window; as many as make 1,024 to 2,048 in all, or every key of a zone of fewer.
inline constexpr uint32_t kMostMassKeys = 2048;
struct MassSample {
  SampleShape windows;
  uint32_t shift;                                         // log2 of keys()
  SEINE_HD uint32_t keys() const { return 1u << shift; }  // of each window: 16, 32 or 64
  SEINE_HD uint32_t size() const { return windows.count << shift; }
  SEINE_HD uint32_t window(uint32_t i) const { return SampledWindow(windows, i); }    // index of the i-th
  SEINE_HD uint32_t first(uint32_t i) const { return (i << shift) % kWindowTokens; }  // its first key
};
SEINE_HD inline MassSample MassSampleOf(int64_t num_keys) {
  MassSample sample = {SampleOf(num_keys), 6};
  while (sample.size() > kMostMassKeys) --sample.shift;
  return sample;
}

// Sums over the sample of e, e^2 and f^2: key i of it in lane i mod 16, one after another, then TreeOf.
inline constexpr uint32_t kMassLanes = 16;
struct MassSums {
  float e, e2, f2;
};

// What keys count, as exponents.
struct MassModel {
  float unit;                      // logits a unit of the coarse score
  float mean;                      // m
  float shrink;                    // r
  float spread;                    // s of a key of factor 1, in logits
  float fine_shrink, fine_growth;  // of candidates: r, and s^2 / 2 of the mean square factor
  float bend = 0;                  // sqrt(2 ln n)
  float weight = 0;                // ln of how many keys a sampled one stands for
  float shift = 0;                 // of the second correction

  SEINE_HD float Logit(float base, float e) const { return unit * (base + (mean + shrink * (e - mean))); }
  // A sampled key for those that are no candidates.
  SEINE_HD float Exponent(float base, float e, float factor) const {
    const float s = spread * factor, square = s < bend ? s : bend;  // beyond the bend the square's tangent
    return ((Logit(base, e) + (0.5f * square * square + bend * (s - square))) + shift) + weight;
  }
  // Returns a candidate's logit by its fine estimate.
  SEINE_HD float FineLogit(float base, float estimate) const {
    const float centre = unit * (base + mean);
    return centre + fine_shrink * (estimate - centre);
  }
};
SEINE_HD inline MassModel MassModelOf(float unit, const PredictedErrors& errors, const MassSums& sums, uint32_t size) {
  const float count = static_cast<float>(size), f2 = sums.f2 / count, added2 = errors.added * errors.added;
  MassModel m;
  m.unit = unit;
  m.mean = sums.e / count;
  const float variance = sums.e2 / count - m.mean * m.mean, left = 1.0f - added2 * f2 / variance;
  m.shrink = variance > 0 ? (left > 0 ? left : 0.0f) : 1.0f;
  m.spread = unit * sqrtf(m.shrink * added2 + errors.unseen * errors.unseen);
  m.fine_shrink = errors.fine_shrink;
  const float fine = unit * errors.fine_spread;
  m.fine_growth = 0.5f * (fine * fine) * f2;
  return m;
}
// `rest` keys of the zone are no candidates, at least one of which is among the `size` sampled keys; `chosen` of these
// are candidates, whose FineLogits exceed their Logits by `excess` in all: sampled key i in lane i mod 16, then TreeOf.
inline constexpr float kTrustedChosen = 50;
SEINE_HD inline void SetRest(uint32_t rest, uint32_t size, uint32_t chosen, float excess, MassModel* m) {
  m->bend = sqrtf(2.0f * LogPositive(static_cast<float>(rest)));
  m->weight = LogPositive(static_cast<float>(rest) / static_cast<float>(size - chosen));
  m->shift = chosen == 0 ? 0.0f : excess / (static_cast<float>(chosen) + kTrustedChosen);
}

}  // namespace seine

#endif  // SEINE_KERNELS_OPS_QUERY_ZONE_MASS_H_
