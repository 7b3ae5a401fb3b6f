// What attention itself costs with and without retrieval: the server attends the same queries over the same tokens,
// once over those that Seine finds and once over all of them, with the same kernels and threads.
#ifndef SEINE_CLIENT_DEMO_TIMING_H_
#define SEINE_CLIENT_DEMO_TIMING_H_

#include "absl/status/statusor.h"
#include "client/client.h"
#include "client/demo/replay.h"
#include "client/demo/trace.h"

namespace seine::demo {

struct AttentionTimes {
  Percentiles seine_us, dense_us;  // of a layer, in the index; the wire's time is the same for both
};

// Two indexes that keep values, one after the other, each deleted again: one searched as in the replay, one whose
// dense_threshold makes every token dense. The trace's keys stand in for its values: the time is the same.
absl::StatusOr<AttentionTimes> TimeAttention(client::Client* client, const Trace& trace, const ReplayOptions& options);

}  // namespace seine::demo

#endif  // SEINE_CLIENT_DEMO_TIMING_H_
