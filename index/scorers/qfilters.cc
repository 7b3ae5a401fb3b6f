// Q-Filters: the projection of a key on the direction that the head's queries share. filters.h says where filters come
// from.
#include "index/scorers/scorers.h"

namespace seine::scorers {

namespace {

class QFilters : public Scorer {
 public:
  bool needs_filters() const override { return true; }

  absl::Status Score(const ScoreInput& input, Scores* scores) const override {
    if (input.filters == nullptr) {
      return absl::InvalidArgumentError(
          "filters: qfilters needs a direction a KV head, from a profile, from queries or "
          "from a file");
    }
    return ForEachHead(input, scores, [&](int h, float* out) {
      const HeadTokens& head = input.heads[h];
      ScoreRange(head, input.head_dim, 0, head.count, cpu::KeyScore::kDot, input.filters + int64_t{h} * input.head_dim,
                 out);
      return absl::OkStatus();
    });
  }
};

}  // namespace

ScorerRef MakeQFilters(const ScorerConfig&) { return std::make_shared<QFilters>(); }

}  // namespace seine::scorers
