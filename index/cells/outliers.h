// Keys that a code describes badly, found by their norm: a model's secondary sinks. Some 2 % of a context's keys are
// far shorter than the others and nearly alike. Their residual from their window's mean is minus that mean, so that few
// bits of the coarse code speak of them, and stage I loses them; many a query wants them all. (Measured: SmolLM2-135M,
// layers 3-10, stage I's 400 candidates held .2-.6 of the softmax mass where the exact top 100 hold .95-.99.) So they
// are candidates always, and scored exactly. KNorm is the same fact put to use: low norms draw attention (arXiv
// 2406.11430).
#ifndef SEINE_INDEX_CELLS_OUTLIERS_H_
#define SEINE_INDEX_CELLS_OUTLIERS_H_

#include <cstdint>
#include <vector>

#include "kernels/backend.h"
#include "kernels/host.h"

namespace seine {

// Keys shorter than this share of their window's median norm are outliers.
inline constexpr float kOutlierNorm = .7f;
// The most that a window has; the shortest where more are short.
inline constexpr int kMostOutliers = 8;

// Bit i: keys[i] of a window is an outlier. keys: [64][dim].
uint64_t FindOutliers(const float* keys, int dim);

// Adds to each query's set those outliers of the zone's windows whose logit is above the set's least, with their
// logits. `outliers`: a word a window from task.zone_begin on. `task` gives the queries and keys; `found` holds sets of
// its own for each query.
void AddOutliers(const uint64_t* outliers, const std::vector<WindowRun>& zone, const host::AttentionTask& task,
                 SearchOutput* found);

}  // namespace seine

#endif  // SEINE_INDEX_CELLS_OUTLIERS_H_
