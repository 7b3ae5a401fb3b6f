// The scorers of eviction and their options, each declared once. index/scorers/NAME.cc has a scorer's code;
// proto/seine/v1/eviction.proto has an option's field.
//
// Conventions of the attention-based scorers are those of NVIDIA kvpress 0.5.5, which the tests compare with.
#ifndef SEINE_PROFILE_SCORER_LIST_H_
#define SEINE_PROFILE_SCORER_LIST_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace seine {

inline constexpr int kMaxScorerWindow = 1 << 24;  // positions
inline constexpr int kMaxQueryWindow = 1 << 16;   // the most queries that an index keeps
inline constexpr int kMaxScorerKernel = 255;      // every token of a layer is a sum over so many

// X(Name, name, what it scores with its source, what it needs beside keys, its options). Higher is kept.
// scorers::MakeName makes it. Needs are among: queries, filters, profile (in place of queries or filters), scores.
#define SEINE_FOR_EACH_SCORER(X)                                                                                       \
  X(KeyDiff, "keydiff", "-cos(k, mean of unit keys); KeyDiff, equation 8", "", "anchor similarity")                    \
  X(ManifoldKv, "manifoldkv", "|k - mean of keys|; ManifoldKV, equation 3", "", "metric")                              \
  X(WindowedManifoldKv, "windowed_manifoldkv", "|k - mean of the keys of its window|; ManifoldKV, algorithm 2", "",    \
    "metric window")                                                                                                   \
  X(Hybrid, "hybrid", "(1 - lambda) keydiff + lambda manifoldkv, each scaled to [0, 1]; ManifoldKV, table 10", "",     \
    "lambda")                                                                                                          \
  X(Normalized, "normalized", "|k/|k| - mean of unit keys|; ManifoldKV, table 10", "", "")                             \
  X(QFilters, "qfilters", "<k, filter>; Q-Filters, section 2.2", "filters profile", "")                                \
  X(KNorm, "knorm", "-|k|; Devoto et al. 2024", "", "")                                                                \
  X(StreamingLlm, "streaming_llm", "the first tokens, then the most recent; StreamingLLM", "", "sink")                 \
  X(SnapKv, "snapkv", "mean attention of the last queries, pooled; SnapKV", "queries", "query_window kernel")          \
  X(Tova, "tova", "attention of the last query, mean over all heads; TOVA", "queries", "")                             \
  X(H2o, "h2o", "mean attention of the queries that see a token; H2O", "queries", "accumulate")                        \
  X(ExpectedAttention, "expected_attention", "attention that queries to come are expected to pay; Expected Attention", \
    "queries profile", "sink future epsilon value_norms")                                                              \
  X(ClientScores, "client", "scores that the caller gives", "scores", "")

// X(Type, name, default, least, most, help). A field of ScorerConfig and of the C++ client's Scorer, and a flag of
// seine; the wire's ScorerSettings has one of the same name. An enum's words are in spelling.h, and help may be empty.
#define SEINE_FOR_EACH_SCORER_OPTION(X)                                                             \
  X(Anchor, anchor, Anchor::kUnitMean, Anchor::kUnitMean, Anchor::kPairwise, "")                    \
  X(Similarity, similarity, Similarity::kCosine, Similarity::kCosine, Similarity::kEuclid, "")      \
  X(Metric, metric, Metric::kL2, Metric::kL2, Metric::kLinf, "")                                    \
  X(int, window, 4096, 1, kMaxScorerWindow, "positions")                                            \
  X(double, lambda, .3, 0, 1, "ManifoldKV's share")                                                 \
  X(int, sink, 4, 0, kMaxScorerWindow, "first tokens, always kept")                                 \
  X(int, query_window, 64, 1, kMaxQueryWindow, "last queries, whose tokens are kept")               \
  X(int, kernel, 5, 1, kMaxScorerKernel, "tokens pooled, odd")                                      \
  X(int, future, 512, 1, kMaxScorerWindow, "positions ahead")                                       \
  X(double, epsilon, 0, 0, 1, "added before the values' norms")                                     \
  X(bool, value_norms, true, false, true, "times the values' norms; needs stored values")           \
  X(bool, accumulate, false, false, true, "running sums of what Attend pays, not means")            \
  X(ValueWeight, value_weight, ValueWeight::kNone, ValueWeight::kNone, ValueWeight::kProjected, "") \
  X(double, weight_epsilon, 1e-4, 0, 1, "added to a score before value_weight")                     \
  X(double, first_stage, .5, 0, 1, "share of the budget chosen before value_weight")

// Options that every scorer has: CriticalKV's, which weights any score by the norms of values.
inline constexpr char kCommonScorerOptions[] = "value_weight weight_epsilon first_stage";

struct ScorerEntry {
  const char* name;     // on the wire and in flags
  const char* formula;  // and its source
  const char* needs;    // words
  const char* options;  // words

  bool Needs(absl::string_view what) const;
  bool Has(absl::string_view option) const;  // of its own, or of every scorer
  bool HasOwn(absl::string_view option) const;
};

const std::vector<ScorerEntry>& AllScorers();
// nullptr: there is none of this name.
const ScorerEntry* FindScorer(absl::string_view name);
std::vector<std::string> ScorerNames();
// Those that need no scores of the caller, as help texts list them: "keydiff, manifoldkv or normalized".
std::string ScorerChoice();
// Scorers that have the option: "manifoldkv, windowed_manifoldkv"; "every scorer".
std::string ScorersWith(absl::string_view option);
// The error of a name that no scorer has: "unknown scorer; did you mean keydiff? there are ...".
std::string UnknownScorer(absl::string_view name);

// One option as a field of some room's settings.
template <typename Settings, typename Type, typename Field>
struct ScorerOption {
  const char* type;  // "int"; of an enum its name in spelling.h
  const char* name;
  Field Settings::*field;
  Type usual, least, most;
  const char* help;
};

}  // namespace seine

#endif  // SEINE_PROFILE_SCORER_LIST_H_
