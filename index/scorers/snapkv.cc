// SnapKV: mean attention of the last `query_window` queries to the tokens before them, average-pooled over neighbours
// (zeros beyond the edges count, as in kvpress), mean over the group; the window's own tokens are above all others.
//
// The queries that the index kept may be fewer, further apart or not of the very last tokens. The mean is over those
// that see a token. Above all others are the last `query_window` positions, from the first query's on, and what came
// after the last query.
#include <algorithm>

#include "index/scorers/attention.h"
#include "index/scorers/scorers.h"
#include "profile/field_error.h"

namespace seine::scorers {

namespace {

// Means over `kernel` neighbours of x[n].
std::vector<float> Pool(const std::vector<float>& x, int64_t n, int kernel) {
  std::vector<float> pooled(n);
  for (int64_t i = 0; i < n; ++i) {
    float sum = 0;
    const int64_t end = std::min<int64_t>(n, i + kernel / 2 + 1);
    for (int64_t j = std::max<int64_t>(0, i - kernel / 2); j < end; ++j) sum += x[j];
    pooled[i] = sum / static_cast<float>(kernel);
  }
  return pooled;
}

class SnapKv : public Scorer {
 public:
  explicit SnapKv(const ScorerConfig& config) : window_(config.query_window), kernel_(config.kernel) {}

  bool needs_queries() const override { return true; }
  int64_t default_query_window() const override { return window_; }
  int64_t observation_window() const override { return window_; }
  const char* kept_prompt_option() const override { return "query_window"; }

  // Those before the window's own.
  TokenRange Scored(const ScoreInput& input, int head) const override {
    if (input.num_queries == 0) return {0, 0};
    const int64_t first = input.query_position(std::max<int64_t>(input.num_queries - window_, 0));
    const int64_t newest = input.query_position(input.num_queries - 1);
    const int64_t own = std::min(std::max(first, input.length - window_), newest + 1);
    return {0, CountUpTo(input.heads[head], own - 1)};
  }

  absl::Status Score(const ScoreInput& input, Scores* scores) const override {
    if (absl::Status s = CheckQueries(input, "snapkv", window_); !s.ok()) return s;
    const int64_t window = std::min(window_, input.num_queries), first = input.num_queries - window;
    const auto before_window = [&](int h) { return Scored(input, h).end; };
    absl::Status status = ForEachHead(input, scores, [&](int h, float* out) {
      const HeadTokens& head = input.heads[h];
      const int64_t n = before_window(h);
      std::vector<float> mean(head.count);
      HeadAttention attention(input, h);
      const float share = 1.0f / static_cast<float>(window * input.group);
      for (int64_t q = first; q < input.num_queries; ++q) attention.Add(q, share, mean.data());
      for (int64_t i = CountUpTo(head, input.query_position(first)); i < n; ++i) {
        const int64_t seers = input.num_queries - std::max(first, input.QueriesBefore(head.position(i)));
        mean[i] *= static_cast<float>(window) / static_cast<float>(seers);
      }
      const std::vector<float> pooled = Pool(mean, n, kernel_);
      std::copy(pooled.begin(), pooled.end(), out);
      return absl::OkStatus();
    });
    if (!status.ok()) return status;
    const float above = AboveAll(*scores);
    for (size_t h = 0; h < scores->size(); ++h) {
      std::fill((*scores)[h].begin() + before_window(static_cast<int>(h)), (*scores)[h].end(), above);
    }
    return status;
  }

 private:
  const int64_t window_;
  const int kernel_;
};

}  // namespace

absl::StatusOr<ScorerRef> MakeSnapKv(const ScorerConfig& config) {
  if (config.kernel % 2 == 0) {
    return BadField("scorer.kernel", config.kernel, " is not odd");
  }
  return std::make_shared<SnapKv>(config);
}

}  // namespace seine::scorers
