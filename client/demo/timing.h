// What attention itself costs with and without retrieval, as an engine waits for it: a layer's token is appended and
// its queries attend, once over what Seine finds and once over all tokens, by turns, with the same kernels and threads.
#ifndef SEINE_CLIENT_DEMO_TIMING_H_
#define SEINE_CLIENT_DEMO_TIMING_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/client.h"
#include "client/demo/replay.h"
#include "client/demo/trace.h"

namespace seine::demo {

// Attention over so many tokens.
struct AttentionTimes {
  int64_t num_tokens = 0;
  int64_t copies = 1;                         // of the trace's rows, one after another; 1: as they were recorded
  double seine_tokens = 0, dense_tokens = 0;  // attended, a head
  Percentiles seine_us, dense_us;             // of a layer: from the step written to its answer read
  double seine_mean_us = 0, dense_mean_us = 0;
  Percentiles seine_index_us, dense_index_us;  // of which in the index
  double processor_share = 1;                  // MeasureProcessorShare just then, of as many threads as the server has
  // The lesser of the medians' ratio and the means'. Beside other load a long step is interrupted and a short one is
  // not, so medians flatter; a stall that meets dense alone flatters the means.
  double speedup() const;
};

struct TimedLengths {
  std::vector<AttentionTimes> times;  // ascending, the trace's own length first
  std::string stopped;                // why the greater lengths are missing: the server's memory; empty: none is
};

// Times attention at the trace's length, at 4 and 16 times that and so on, and at ReplayOptions::long_tokens, in whole
// copies of the trace. Copies serve for times alone: what is found among them says nothing of a longer text. `threads`
// is how many the server has. It makes an index that keeps values, and deletes it again. The trace's keys stand in for
// its values: the time is the same.
absl::StatusOr<TimedLengths> TimeAttention(client::Client* client, const Trace& trace, const ReplayOptions& options,
                                           int threads);

}  // namespace seine::demo

#endif  // SEINE_CLIENT_DEMO_TIMING_H_
