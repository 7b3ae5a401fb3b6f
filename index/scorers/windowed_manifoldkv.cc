// WindowedManifoldKV (algorithm 2): distance to the mean of the key's own window, for one mean of a long context is
// near to nothing in particular. Windows are of positions and do not overlap, whatever is left of each: what was near
// in the text is compared, also after evictions. The selection is over all of them.
#include "index/scorers/scorers.h"

namespace seine::scorers {

namespace {

class WindowedManifoldKv : public Scorer {
 public:
  explicit WindowedManifoldKv(const ScorerConfig& config) : kind_(KindOf(config.metric)), window_(config.window) {}

  SumsWanted sums() const override { return {.unit = false, .raw = false, .window = window_}; }

  absl::Status Score(const ScoreInput& input, Scores* scores) const override {
    const auto means = MeansOf(input, sums());
    if (!means.ok()) return means.status();
    return ScoreWindows(input, kind_, *means, scores);
  }

 private:
  const KeyScore kind_;
  const int window_;
};

}  // namespace

absl::StatusOr<ScorerRef> MakeWindowedManifoldKv(const ScorerConfig& config) {
  return std::make_shared<WindowedManifoldKv>(config);
}

}  // namespace seine::scorers
