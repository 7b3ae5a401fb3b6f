// Makers of the scorers, one file each; and what several of them share.
#ifndef SEINE_INDEX_SCORERS_SCORERS_H_
#define SEINE_INDEX_SCORERS_SCORERS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "index/scorers/scorer.h"
#include "kernels/ops/score_keys/score_keys.h"

namespace seine::scorers {

using ScorerRef = std::shared_ptr<const Scorer>;

// MakeKeyDiff and so on. INVALID_ARGUMENT "scorer.option: what is wrong" where an option in its range does not go with
// the others.
#define SEINE_SCORER_MAKER(Name, ...) absl::StatusOr<ScorerRef> Make##Name(const ScorerConfig& config);
SEINE_FOR_EACH_SCORER(SEINE_SCORER_MAKER)
#undef SEINE_SCORER_MAKER

// body(h) for every KV head, in parallel, once scores->at(h) has its head's size. The first error by head; StopStatus()
// where some were left out, whose scores then have no size.
absl::Status ForEachHead(const ScoreInput& input, Scores* scores,
                         const std::function<absl::Status(int head, float* out)>& body);

// visit(rows, first, count) for each contiguous run of tokens [begin, end) of a head, in order; of a stopped call no
// more of them.
void ForEachRun(const ChunkedRows& rows, int64_t begin, int64_t end,
                const std::function<void(const ConstRows&, int64_t first, int64_t count)>& visit);

// Means of every head's keys, and of each window's: of its running sums, else of the backend's, in a pass over the keys
// for each sum wanted.
absl::StatusOr<std::vector<KeyMeans>> MeansOf(const ScoreInput& input, const SumsWanted& wanted);

// The backend's scores of every head's keys. anchors(h) gives what ScoreTask::anchors is to hold for head h, and runs
// in parallel: one anchor.
absl::Status ScoreHeads(const ScoreInput& input, KeyScore kind,
                        const std::function<std::vector<float>(int head)>& anchors, Scores* scores);
// The same against the means of each head's windows.
absl::Status ScoreWindows(const ScoreInput& input, KeyScore kind, const std::vector<KeyMeans>& means, Scores* scores);

KeyScore KindOf(Metric metric);

// `v` over its norm, in fp64; zeros stay.
std::vector<float> UnitVector(std::vector<float> v);

// Returns how many of the tokens, which are sorted by position, are at or before `position`.
int64_t CountUpTo(const HeadTokens& head, int64_t position);

// Largest of all scores plus one: what tokens get that are always kept (kvpress).
float AboveAll(const Scores& scores);

}  // namespace seine::scorers

#endif  // SEINE_INDEX_SCORERS_SCORERS_H_
