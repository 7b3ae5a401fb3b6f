// H2O: accumulated attention over the number of queries that could see the token, mean over the group. With the queries
// of all positions this is kvpress' ObservedAttention; with the last ones, what they observed. Tokens that came after
// the last query are above all others.
#include <algorithm>

#include "index/scorers/attention.h"
#include "index/scorers/scorers.h"

namespace seine::scorers {

namespace {

class H2o : public Scorer {
 public:
  bool needs_queries() const override { return true; }

  absl::Status Score(const ScoreInput& input, Scores* scores) const override {
    if (absl::Status s = CheckQueries(input, "h2o", 1); !s.ok()) return s;
    const int64_t newest = input.query_position(input.num_queries - 1);
    const auto seen = [&](int h) { return CountUpTo(input.heads[h], newest); };
    absl::Status status = ForEachHead(input, scores, [&](int h, float* out) {
      const HeadTokens& head = input.heads[h];
      HeadAttention attention(input, h);
      const float share = 1.0f / static_cast<float>(input.group);
      for (int64_t q = 0; q < input.num_queries; ++q) attention.Add(q, share, out);
      for (int64_t i = 0; i < seen(h); ++i) {
        out[i] /= static_cast<float>(input.num_queries - input.QueriesBefore(head.position(i)));
      }
      return absl::OkStatus();
    });
    if (!status.ok()) return status;
    const float above = AboveAll(*scores);
    for (size_t h = 0; h < scores->size(); ++h) {
      std::fill((*scores)[h].begin() + seen(static_cast<int>(h)), (*scores)[h].end(), above);
    }
    return status;
  }
};

}  // namespace

absl::StatusOr<ScorerRef> MakeH2o(const ScorerConfig&) { return std::make_shared<H2o>(); }

}  // namespace seine::scorers
