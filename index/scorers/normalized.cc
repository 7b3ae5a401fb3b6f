// "Normalized" of ManifoldKV's table 10, read as the L2 distance of the unit key to the mean of unit keys; the paper
// does not define it.
#include "index/scorers/scorers.h"

namespace seine::scorers {

namespace {

class Normalized : public Scorer {
 public:
  SumsWanted sums() const override { return {.unit = true, .raw = false, .window = 0}; }

  absl::Status Score(const ScoreInput& input, Scores* scores) const override {
    return ForEachHead(input, scores, [&](int h, float* out) {
      const HeadTokens& head = input.heads[h];
      KeySums own(sums(), input.head_dim);
      const std::vector<float> mean = SumsOf(head, sums(), input.head_dim, &own).UnitMean();
      ScoreRange(head, input.head_dim, 0, head.count, cpu::KeyScore::kUnitL2, mean.data(), out);
      return absl::OkStatus();
    });
  }
};

}  // namespace

ScorerRef MakeNormalized(const ScorerConfig&) { return std::make_shared<Normalized>(); }

}  // namespace seine::scorers
