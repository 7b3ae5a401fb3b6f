// KeyDiff (section 3.2): a key that points where the others do is the less worth keeping.
#include <algorithm>

#include "index/scorers/scorers.h"
#include "kernels/host.h"
#include "kernels/stop.h"
#include "profile/field_error.h"

namespace seine::scorers {

namespace {

// The (lower) median of each coordinate.
std::vector<float> MedianKey(const HeadTokens& head, int head_dim) {
  std::vector<float> rows(static_cast<size_t>(head.count) * head_dim), column(head.count), median(head_dim);
  ForEachRun(head.keys, 0, head.count, [&](const ConstRows& run, int64_t first, int64_t count) {
    host::ToFloat(run, static_cast<int>(count), head_dim, rows.data() + first * head_dim);
  });
  for (int j = 0; j < head_dim && head.count > 0 && !StopRequested(); ++j) {
    for (int64_t i = 0; i < head.count; ++i) column[i] = rows[i * head_dim + j];
    const auto middle = column.begin() + (head.count - 1) / 2;
    std::nth_element(column.begin(), middle, column.end());
    median[j] = *middle;
  }
  return median;
}

// Equation 7: out[i] = -mean over j of cos(k_i, k_j).
void ScorePairwise(const HeadTokens& head, int head_dim, float* out) {
  const int64_t n = head.count;
  std::vector<float> rows(n * head_dim), cosines(4 * n);
  ForEachRun(head.keys, 0, n, [&](const ConstRows& run, int64_t first, int64_t count) {
    host::ToFloat(run, static_cast<int>(count), head_dim, rows.data() + first * head_dim);
  });
  for (int64_t i = 0; i < n; ++i) {
    float* row = rows.data() + i * head_dim;
    const std::vector<float> unit = UnitVector({row, row + head_dim});
    std::copy(unit.begin(), unit.end(), row);
  }
  const ConstRows all = {rows.data(), head_dim * sizeof(float), DType::kFloat32};
  for (int64_t i = 0; i < n && !StopRequested(); i += 4) {
    const int now = static_cast<int>(std::min<int64_t>(4, n - i));
    host::DotRows(all, n, head_dim, rows.data() + i * head_dim, now, cosines.data(), n);
    for (int g = 0; g < now; ++g) {
      double sum = 0;
      for (int64_t j = 0; j < n; ++j) sum += cosines[g * n + j];
      out[i + g] = static_cast<float>(-sum / static_cast<double>(n));
    }
  }
}

class KeyDiff : public Scorer {
 public:
  explicit KeyDiff(const ScorerConfig& config) : anchor_(config.anchor), similarity_(config.similarity) {}

  SumsWanted sums() const override {
    return {.unit = anchor_ == Anchor::kUnitMean, .raw = anchor_ == Anchor::kMean, .window = 0};
  }

  absl::Status Score(const ScoreInput& input, Scores* scores) const override {
    if (anchor_ != Anchor::kPairwise) return ScoreAnchored(input, scores);
    return ForEachHead(input, scores, [&](int h, float* out) {
      const HeadTokens& head = input.heads[h];
      if (head.count > kMaxPairwise) {
        return BadField("scorer.anchor", "pairwise compares at most ", kMaxPairwise, " tokens, KV head ", h, " holds ",
                        head.count);
      }
      ScorePairwise(head, input.head_dim, out);
      return absl::OkStatus();
    });
  }

 private:
  std::vector<float> AnchorOf(const HeadTokens& head, const KeyMeans& means, int head_dim) const {
    if (anchor_ == Anchor::kMedian) return MedianKey(head, head_dim);
    return anchor_ == Anchor::kMean ? means.raw : means.unit;
  }

  absl::Status ScoreAnchored(const ScoreInput& input, Scores* scores) const {
    const KeyScore kind = similarity_ == Similarity::kCosine ? KeyScore::kNegCosine
                          : similarity_ == Similarity::kDot  ? KeyScore::kDot
                                                             : KeyScore::kL2;  // minus the similarity -|k - a|
    const auto means = MeansOf(input, sums());
    if (!means.ok()) return means.status();
    const auto anchor_of = [&](int h) {
      std::vector<float> anchor = AnchorOf(input.heads[h], (*means)[h], input.head_dim);
      if (similarity_ == Similarity::kCosine) return UnitVector(std::move(anchor));
      if (similarity_ == Similarity::kDot) {
        for (float& x : anchor) x = -x;
      }
      return anchor;
    };
    return ScoreHeads(input, kind, anchor_of, scores);
  }

  const Anchor anchor_;
  const Similarity similarity_;
};

}  // namespace

absl::StatusOr<ScorerRef> MakeKeyDiff(const ScorerConfig& config) {
  if (config.anchor == Anchor::kPairwise && config.similarity != Similarity::kCosine) {
    return BadField("scorer.similarity", "the pairwise form is defined for cosine");
  }
  return std::make_shared<KeyDiff>(config);
}

}  // namespace seine::scorers
