// The cut of a recall target (recall_target.h) from the scores of a zone or of a sample of it.
#ifndef SEINE_KERNELS_OPS_SCAN_RECALL_CUT_H_
#define SEINE_KERNELS_OPS_SCAN_RECALL_CUT_H_

#include <cstddef>
#include <vector>

#include "kernels/ops/query/recall_target.h"
#include "kernels/ops/scan/coarse_stage.h"

namespace seine::cpu {

// Mean factor of the first keys of the sampled windows: the scale of a typical key.
float MeanFactor(const SearchTask& task);

// The spread of a query's scores, from those of its sample.
ScoreSpread SpreadOfSample(const SearchTask& task, const QueryWork& work, float mean_factor,
                           const std::vector<float>& sample);

// The score that the `target` asks for, given the best k of scores[n].
float CutOf(const ScoreSpread& spread, const float* scores, size_t n, size_t k, double target,
            std::vector<float>* scratch);

// Most candidates that a target may ask for.
size_t MostCandidates(const SearchTask& task, size_t wanted);

// What the sample alone says, as the share of the zone to look through: the sample's best stand for the zone's, which
// lie above them.
double SampledShare(const SearchTask& task, const SearchParams& params, size_t wanted, const ScoreSpread& spread,
                    const std::vector<float>& sample, std::vector<float>* scratch);

}  // namespace seine::cpu

#endif  // SEINE_KERNELS_OPS_SCAN_RECALL_CUT_H_
