// ManifoldKV: a key far from the mean of all keys is worth keeping (equation 3).
#include "index/scorers/scorers.h"

namespace seine::scorers {

namespace {

class ManifoldKv : public Scorer {
 public:
  explicit ManifoldKv(const ScorerConfig& config) : kind_(KindOf(config.metric)) {}

  SumsWanted sums() const override { return {.unit = false, .raw = true, .window = 0}; }

  absl::Status Score(const ScoreInput& input, Scores* scores) const override {
    const auto means = MeansOf(input, sums());
    if (!means.ok()) return means.status();
    const auto mean = [&](int h) { return (*means)[h].raw; };
    return ScoreHeads(input, kind_, mean, scores);
  }

 private:
  const KeyScore kind_;
};

}  // namespace

absl::StatusOr<ScorerRef> MakeManifoldKv(const ScorerConfig& config) { return std::make_shared<ManifoldKv>(config); }

}  // namespace seine::scorers
