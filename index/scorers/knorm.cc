// K-norm: keys of small norm attract attention (Devoto et al. 2024).
#include "index/scorers/scorers.h"

namespace seine::scorers {

namespace {

class KNorm : public Scorer {
 public:
  absl::Status Score(const ScoreInput& input, Scores* scores) const override {
    return ForEachHead(input, scores, [&](int h, float* out) {
      const HeadTokens& head = input.heads[h];
      ScoreRange(head, input.head_dim, 0, head.count, cpu::KeyScore::kNegNorm, nullptr, out);
      return absl::OkStatus();
    });
  }
};

}  // namespace

ScorerRef MakeKNorm(const ScorerConfig&) { return std::make_shared<KNorm>(); }

}  // namespace seine::scorers
