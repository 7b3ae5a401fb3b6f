// ManifoldKV: a key far from the mean of all keys is worth keeping (equation 3).
#include "index/scorers/scorers.h"

namespace seine::scorers {

namespace {

class ManifoldKv : public Scorer {
 public:
  explicit ManifoldKv(const ScorerConfig& config) : kind_(KindOf(config.metric)) {}

  SumsWanted sums() const override { return {.unit = false, .raw = true, .window = 0}; }

  absl::Status Score(const ScoreInput& input, Scores* scores) const override {
    return ForEachHead(input, scores, [&](int h, float* out) {
      const HeadTokens& head = input.heads[h];
      KeySums own(sums(), input.head_dim);
      const std::vector<float> mean = SumsOf(head, sums(), input.head_dim, &own).RawMean();
      ScoreRange(head, input.head_dim, 0, head.count, kind_, mean.data(), out);
      return absl::OkStatus();
    });
  }

 private:
  const cpu::KeyScore kind_;
};

}  // namespace

ScorerRef MakeManifoldKv(const ScorerConfig& config) { return std::make_shared<ManifoldKv>(config); }

}  // namespace seine::scorers
