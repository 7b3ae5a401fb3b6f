// WindowedManifoldKV (algorithm 2): distance to the mean of the key's own window, for one mean of a long context is
// near to nothing in particular. Windows do not overlap; the selection is over all of them.
#include <algorithm>

#include "index/scorers/scorers.h"

namespace seine::scorers {

namespace {

class WindowedManifoldKv : public Scorer {
 public:
  explicit WindowedManifoldKv(const ScorerConfig& config) : kind_(KindOf(config.metric)), window_(config.window) {}

  SumsWanted sums() const override { return {.unit = false, .raw = false, .window = window_}; }

  absl::Status Score(const ScoreInput& input, Scores* scores) const override {
    return ForEachHead(input, scores, [&](int h, float* out) {
      const HeadTokens& head = input.heads[h];
      KeySums own(sums(), input.head_dim);
      const KeySums& key_sums = SumsOf(head, sums(), input.head_dim, &own);
      for (int64_t begin = 0; begin < head.count; begin += window_) {
        const std::vector<float> mean = key_sums.WindowMean(begin / window_);
        ScoreRange(head, input.head_dim, begin, std::min<int64_t>(begin + window_, head.count), kind_, mean.data(),
                   out + begin);
      }
      return absl::OkStatus();
    });
  }

 private:
  const cpu::KeyScore kind_;
  const int window_;
};

}  // namespace

ScorerRef MakeWindowedManifoldKv(const ScorerConfig& config) { return std::make_shared<WindowedManifoldKv>(config); }

}  // namespace seine::scorers
