// Moments of what sequences hold and were asked: a profile's layer without a recorded trace.
#ifndef SEINE_INDEX_CALLS_MEASURE_H_
#define SEINE_INDEX_CALLS_MEASURE_H_

#include "index/calls/checks.h"
#include "index/calls/sequences.h"

namespace seine {

// Index::Measure.
absl::StatusOr<Profile> MeasureLayer(const Context& context, const Checks& checks, const Sequences& sequences,
                                     absl::Span<const SequenceHandle> handles, int layer);

}  // namespace seine

#endif  // SEINE_INDEX_CALLS_MEASURE_H_
