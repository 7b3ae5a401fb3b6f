// Q-Filters: the projection of a key on the direction that the head's queries share. filters.h says where filters come
// from.
#include <vector>

#include "index/scorers/scorers.h"
#include "profile/field_error.h"

namespace seine::scorers {

namespace {

class QFilters : public Scorer {
 public:
  bool needs_filters() const override { return true; }

  absl::Status Score(const ScoreInput& input, Scores* scores) const override {
    if (input.filters == nullptr) {
      return BadField("given.filters",
                      "qfilters needs a direction a KV head, from a profile, from queries or "
                      "from a file");
    }
    const auto filter = [&](int h) {
      const float* first = input.filters + int64_t{h} * input.head_dim;
      return std::vector<float>(first, first + input.head_dim);
    };
    return ScoreHeads(input, KeyScore::kDot, filter, scores);
  }
};

}  // namespace

absl::StatusOr<ScorerRef> MakeQFilters(const ScorerConfig&) { return std::make_shared<QFilters>(); }

}  // namespace seine::scorers
