// TOVA: attention of the last query, mean over all query heads of the layer, the same for each KV head; tokens from
// that query's own on, which is the last, are above all others (kvpress). Where heads hold different tokens, the mean
// is over the heads that hold one.
#include <algorithm>

#include "index/scorers/attention.h"
#include "index/scorers/scorers.h"

namespace seine::scorers {

namespace {

class Tova : public Scorer {
 public:
  bool needs_queries() const override { return true; }
  int64_t default_query_window() const override { return 1; }

  // Those before the last query's own.
  TokenRange Scored(const ScoreInput& input, int head) const override {
    if (input.num_queries == 0) return {0, 0};
    return {0, CountUpTo(input.heads[head], input.query_position(input.num_queries - 1) - 1)};
  }

  absl::Status Score(const ScoreInput& input, Scores* scores) const override {
    if (absl::Status s = CheckQueries(input, "tova", 1); !s.ok()) return s;
    absl::Status status = ForEachHead(input, scores, [&](int h, float* out) {
      HeadAttention(input, h).Add(input.num_queries - 1, 1.0f / static_cast<float>(input.group), out);
      return absl::OkStatus();
    });
    if (!status.ok()) return status;
    AverageHeads(input, scores);
    const float above = AboveAll(*scores);
    for (size_t h = 0; h < scores->size(); ++h) {
      std::fill((*scores)[h].begin() + Scored(input, static_cast<int>(h)).end, (*scores)[h].end(), above);
    }
    return status;
  }

 private:
  static void AverageHeads(const ScoreInput& input, Scores* scores) {
    std::vector<float> sums(input.length), holders(input.length);
    for (size_t h = 0; h < scores->size(); ++h) {
      for (int64_t i = 0; i < input.heads[h].count; ++i) {
        sums[input.heads[h].position(i)] += (*scores)[h][i];
        holders[input.heads[h].position(i)] += 1;
      }
    }
    for (size_t h = 0; h < scores->size(); ++h) {
      for (int64_t i = 0; i < input.heads[h].count; ++i) {
        const int32_t p = input.heads[h].position(i);
        (*scores)[h][i] = sums[p] / holders[p];
      }
    }
  }
};

}  // namespace

absl::StatusOr<ScorerRef> MakeTova(const ScorerConfig&) { return std::make_shared<Tova>(); }

}  // namespace seine::scorers
