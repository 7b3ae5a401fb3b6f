// Hybrid(lambda) of ManifoldKV's table 10, read as (1 - lambda) KeyDiff + lambda ManifoldKV, each scaled to [0, 1]
// within its head; the paper does not define it.
#include <algorithm>
#include <vector>

#include "index/scorers/scorers.h"
#include "index/stop_status.h"

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
    const auto means = MeansOf(input, sums());
    if (!means.ok()) return means.status();
    const auto direction = [&](int h) { return UnitVector((*means)[h].unit); };
    const auto mean = [&](int h) { return (*means)[h].raw; };
    Scores away;
    if (absl::Status s = ScoreHeads(input, KeyScore::kNegCosine, direction, &away); !s.ok()) return s;
    if (absl::Status s = ScoreHeads(input, KeyScore::kL2, mean, scores); !s.ok()) return s;
    input.backend->Run(static_cast<int>(input.heads.size()), [&](int h) {
      std::vector<float>& far = (*scores)[h];
      ScaleToUnit(&away[h]);
      ScaleToUnit(&far);
      for (size_t i = 0; i < far.size(); ++i) far[i] = (1 - share_) * away[h][i] + share_ * far[i];
    });
    return StopStatus();
  }

 private:
  const float share_;
};

}  // namespace

absl::StatusOr<ScorerRef> MakeHybrid(const ScorerConfig& config) { return std::make_shared<Hybrid>(config); }

}  // namespace seine::scorers
