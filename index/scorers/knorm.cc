// K-norm: keys of small norm attract attention (Devoto et al. 2024).
#include <vector>

#include "index/scorers/scorers.h"

namespace seine::scorers {

namespace {

class KNorm : public Scorer {
 public:
  absl::Status Score(const ScoreInput& input, Scores* scores) const override {
    const auto none = [](int) { return std::vector<float>(); };
    return ScoreHeads(input, KeyScore::kNegNorm, none, scores);
  }
};

}  // namespace

absl::StatusOr<ScorerRef> MakeKNorm(const ScorerConfig&) { return std::make_shared<KNorm>(); }

}  // namespace seine::scorers
