// Queries that were asked lately, asked once more and answered exactly besides.
#ifndef SEINE_INDEX_CALLS_COMPARE_EXACT_H_
#define SEINE_INDEX_CALLS_COMPARE_EXACT_H_

#include "index/calls/checks.h"
#include "index/calls/sequences.h"
#include "index/retrieval/reencoder.h"

namespace seine {

// Index::CompareExact.
absl::StatusOr<ComparisonReport> CompareSequences(const Context& context, const Checks& checks,
                                                  const Sequences& sequences, Reencoder* reencoder,
                                                  absl::Span<const SequenceHandle> handles,
                                                  const ComparisonParams& params);

}  // namespace seine

#endif  // SEINE_INDEX_CALLS_COMPARE_EXACT_H_
