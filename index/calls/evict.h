// Scores, evictions and diagnoses of one layer, whose lock each of them takes.
#ifndef SEINE_INDEX_CALLS_EVICT_H_
#define SEINE_INDEX_CALLS_EVICT_H_

#include <vector>

#include "index/calls/checks.h"
#include "index/context.h"
#include "index/index.h"
#include "index/sequence/layer.h"

namespace seine {

// Index::Score, Evict and Diagnose once the layer is found.
absl::StatusOr<LayerScores> ScoreLayer(const Checks& checks, const Layer& layer, const ScorerConfig& config,
                                       const ScorerInputs& given);
absl::StatusOr<EvictAnswer> EvictLayer(const Context& context, const Checks& checks, Layer* layer,
                                       const EvictParams& params, const ScorerInputs& given);
absl::StatusOr<std::vector<HeadDiagnosis>> DiagnoseLayer(const Context& context, const Checks& checks,
                                                         const Layer& layer, const DiagnoseParams& params,
                                                         const ScorerInputs& given);

}  // namespace seine

#endif  // SEINE_INDEX_CALLS_EVICT_H_
