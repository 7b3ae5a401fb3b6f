// H2O: accumulated attention over the number of queries that could see the token, mean over the group. With the queries
// of all positions this is kvpress' ObservedAttention; with the last ones, what they observed.
//
// With `accumulate` it is the sum itself, the paper's rule (arXiv 2306.14048, algorithm 1): of the queries that come
// with the call, else what the index has added up as they were attended (eviction/attention_sums.h). Tokens that came
// after the last query are above all others.
#include <algorithm>

#include "index/scorers/attention.h"
#include "index/scorers/scorers.h"
#include "profile/field_error.h"

namespace seine::scorers {

namespace {

class H2o : public Scorer {
 public:
  explicit H2o(bool accumulate) : accumulate_(accumulate) {}

  bool needs_queries() const override { return !accumulate_; }
  bool accumulates() const override { return accumulate_; }

  // Those that a query could see.
  TokenRange Scored(const ScoreInput& input, int head) const override {
    const bool sums = ReadsSums(input);
    if (!sums && input.num_queries == 0) return {0, 0};
    const int64_t newest = sums ? input.accumulated_to - 1 : input.query_position(input.num_queries - 1);
    return {0, CountUpTo(input.heads[head], newest)};
  }

  absl::Status Score(const ScoreInput& input, Scores* scores) const override {
    const bool sums = ReadsSums(input);
    if (sums && input.attention_sums.empty() && input.length > 0) {
      return FieldError(absl::StatusCode::kFailedPrecondition, "given.queries",
                        "h2o with accumulate needs some, or an index whose eviction.scorer it is, which keeps sums");
    }
    if (!sums) {
      if (absl::Status s = CheckQueries(input, "h2o", 1); !s.ok()) return s;
    }
    const auto seen = [&](int h) { return Scored(input, h).end; };
    absl::Status status = ForEachHead(input, scores, [&](int h, float* out) {
      if (sums) {
        std::copy_n(input.attention_sums[h], seen(h), out);
      } else {
        AddUp(input, h, seen(h), out);
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

 private:
  bool ReadsSums(const ScoreInput& input) const {
    return accumulate_ && (input.queries == nullptr || input.queries_kept());
  }
  void AddUp(const ScoreInput& input, int h, int64_t seen, float* out) const {
    HeadAttention attention(input, h);
    const float share = 1.0f / static_cast<float>(input.group);
    for (int64_t q = 0; q < input.num_queries; ++q) attention.Add(q, share, out);
    for (int64_t i = 0; i < seen && !accumulate_; ++i) {
      out[i] /= static_cast<float>(input.num_queries - input.QueriesBefore(input.heads[h].position(i)));
    }
  }

  const bool accumulate_;
};

}  // namespace

absl::StatusOr<ScorerRef> MakeH2o(const ScorerConfig& config) { return std::make_shared<H2o>(config.accumulate); }

}  // namespace seine::scorers
