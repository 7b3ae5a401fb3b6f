// "Normalized" of ManifoldKV's table 10, read as the L2 distance of the unit key to the mean of unit keys; the paper
// does not define it.
#include "index/scorers/scorers.h"

namespace seine::scorers {

namespace {

class Normalized : public Scorer {
 public:
  SumsWanted sums() const override { return {.unit = true, .raw = false, .window = 0}; }

  absl::Status Score(const ScoreInput& input, Scores* scores) const override {
    const auto means = MeansOf(input, sums());
    if (!means.ok()) return means.status();
    const auto mean = [&](int h) { return (*means)[h].unit; };
    return ScoreHeads(input, KeyScore::kUnitL2, mean, scores);
  }
};

}  // namespace

absl::StatusOr<ScorerRef> MakeNormalized(const ScorerConfig&) { return std::make_shared<Normalized>(); }

}  // namespace seine::scorers
