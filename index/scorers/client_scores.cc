// Scores that the caller gives.
#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "index/scorers/scorers.h"
#include "profile/field_error.h"

namespace seine::scorers {

namespace {

class ClientScores : public Scorer {
 public:
  bool needs_scores() const override { return true; }

  absl::Status Score(const ScoreInput& input, Scores* scores) const override {
    if (input.given.size() != input.heads.size()) {
      return BadField("given.scores", input.given.size(), " heads given, the layer has ", input.heads.size(),
                      " KV heads");
    }
    return ForEachHead(input, scores, [&](int h, float* out) {
      for (int64_t i = 0; i < input.heads[h].count; ++i) {
        out[i] = input.given[h][i];
        if (!std::isfinite(out[i])) {
          return BadField(absl::StrCat("given.scores[", h, "]"), "token ", i, " is not finite");
        }
      }
      return absl::OkStatus();
    });
  }
};

}  // namespace

absl::StatusOr<ScorerRef> MakeClientScores(const ScorerConfig&) { return std::make_shared<ClientScores>(); }

}  // namespace seine::scorers
