// What a head's keys look like to eviction: figures to choose a scorer by, as the papers print them.
#ifndef SEINE_INDEX_EVICTION_DIAGNOSE_H_
#define SEINE_INDEX_EVICTION_DIAGNOSE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "index/config/budget.h"
#include "index/scorers/scorer.h"

namespace seine {

struct DiagnoseParams {
  std::vector<ScorerConfig> scorers;                  // compared with each other; at most 16
  BudgetConfig budget = {.tokens = 0, .ratio = .75};  // of the sets compared
  int window = 4096;                                  // of the dilution indicator, tokens
};

inline constexpr int kMaxDiagnosedScorers = 16;
inline constexpr int kMaxDiagnosedWindow = 1 << 24;
// Tokens that distances between neighbours are measured on, spread evenly; neighbours of the maximum-likelihood
// estimate.
inline constexpr int kDiagnosedTokens = 1024;
inline constexpr int kDiagnosedNeighbours = 20;

struct HeadDiagnosis {
  int64_t tokens = 0;
  // Intrinsic dimension: Two-NN (Facco et al. 2017), Levina-Bickel's estimate as MacKay and Ghahramani average it, and
  // the principal components that hold 95 % of the variance. The first two are 0 where too few tokens differ.
  double two_nn = 0, mle = 0;
  int pca95 = 0;
  double cosine_mean = 0, cosine_std = 0;  // of the cosine to the mean of unit keys
  double norm_mean = 0, norm_std = 0;
  // (std / mean of the distance to the window's mean) over (std / mean of that to the one mean): how much more windows
  // tell tokens apart. About 1: no dilution.
  double dilution = 0;
  std::vector<double> overlap;  // [scorers, scorers] share of the kept sets in common
  // [scorers, scorers] of scores, by rank (Spearman), over the tokens that both have scored: what a scorer keeps in any
  // case (SnapKV's window, sinks) has no score. 0 where fewer than two are left, or one of the two tells none apart.
  std::vector<double> correlation;
  // [scorers] of scores with the mean attention of the queries, by rank, over the tokens that have a score and that a
  // query saw: those that came after the last query are left out of it. Empty where fewer than two were seen.
  std::vector<double> attention_correlation;
  int64_t attention_tokens = 0;  // that were seen; 0 without queries
};

// An error of the scorer at a place in `scorers`: "scorer.name: ..." becomes "scorers[1].name: ...".
absl::Status OfScorers(size_t place, const absl::Status& status);

// INVALID_ARGUMENT "field: ..."; errors of the scorers.
absl::StatusOr<std::vector<HeadDiagnosis>> Diagnose(const DiagnoseParams& params, int num_layers,
                                                    const ScoreInput& input);

}  // namespace seine

#endif  // SEINE_INDEX_EVICTION_DIAGNOSE_H_
