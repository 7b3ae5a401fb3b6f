// The recall that a codec's own expectation of its noise foretells for one answer (judge.h has the reasoning).
#ifndef SEINE_INDEX_QUALITY_PREDICTED_RECALL_H_
#define SEINE_INDEX_QUALITY_PREDICTED_RECALL_H_

#include <cstdint>
#include <vector>

#include "index/quality/sample.h"

namespace seine {

// `logits`: of each query that shares the set, [head.size]; `exact`: keys of the zone. In [0, 1]; 1 of an empty set.
double PredictedRecall(const QualitySample::Head& head, const SearchParams& params,
                       const std::vector<const float*>& logits, const std::vector<uint32_t>& exact);

}  // namespace seine

#endif  // SEINE_INDEX_QUALITY_PREDICTED_RECALL_H_
