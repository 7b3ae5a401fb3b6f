// Hybrid(lambda) of ManifoldKV's table 10, read as (1 - lambda) KeyDiff + lambda ManifoldKV, each scaled to [0, 1]
// within its head; the paper does not define it.
#include <algorithm>

#include "index/scorers/scorers.h"

namespace seine::scorers {

namespace {

// x to [0, 1]; all equal: 0.
void ScaleToUnit(std::vector<float>* x) {
  if (x->empty()) return;
  const auto [low, high] = std::minmax_element(x->begin(), x->end());
  const float least = *low, span = *high - *low;
  for (float& v : *x) v = span > 0 ? (v - least) / span : 0.0f;
}

class Hybrid : public Scorer {
 public:
  explicit Hybrid(const ScorerConfig& config) : share_(static_cast<float>(config.lambda)) {}

  SumsWanted sums() const override { return {.unit = true, .raw = true, .window = 0}; }

  absl::Status Score(const ScoreInput& input, Scores* scores) const override {
    return ForEachHead(input, scores, [&](int h, float* out) {
      const HeadTokens& head = input.heads[h];
      KeySums own(sums(), input.head_dim);
      const KeySums& key_sums = SumsOf(head, sums(), input.head_dim, &own);
      std::vector<float> away(head.count), far(head.count);
      ScoreRange(head, input.head_dim, 0, head.count, cpu::KeyScore::kNegCosine, UnitVector(key_sums.UnitMean()).data(),
                 away.data());
      ScoreRange(head, input.head_dim, 0, head.count, cpu::KeyScore::kL2, key_sums.RawMean().data(), far.data());
      ScaleToUnit(&away);
      ScaleToUnit(&far);
      for (int64_t i = 0; i < head.count; ++i) out[i] = (1 - share_) * away[i] + share_ * far[i];
      return absl::OkStatus();
    });
  }

 private:
  const float share_;
};

}  // namespace

ScorerRef MakeHybrid(const ScorerConfig& config) { return std::make_shared<Hybrid>(config); }

}  // namespace seine::scorers
