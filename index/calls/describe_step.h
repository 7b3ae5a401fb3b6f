// What the latest step that a layer keeps finds, and where its exact attention lies.
#ifndef SEINE_INDEX_CALLS_DESCRIBE_STEP_H_
#define SEINE_INDEX_CALLS_DESCRIBE_STEP_H_

#include "index/calls/checks.h"
#include "index/calls/sequences.h"
#include "index/retrieval/reencoder.h"

namespace seine {

// Index::DescribeStep.
absl::StatusOr<StepInfo> DescribeLatestStep(const Context& context, const Checks& checks, const Sequences& sequences,
                                            Reencoder* reencoder, const SequenceHandle& handle, int layer);

}  // namespace seine

#endif  // SEINE_INDEX_CALLS_DESCRIBE_STEP_H_
