// Replays a trace against a server as an inference engine would, and measures what comes back.
#ifndef SEINE_CLIENT_DEMO_REPLAY_H_
#define SEINE_CLIENT_DEMO_REPLAY_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/client.h"
#include "client/demo/trace.h"

namespace seine::demo {

struct ReplayOptions {
  int top_k = 100;
  double beta = 0.10;
  int refine = 200;
  int steps = 512;  // decode steps: the trace's last positions
  client::Transport transport = client::Transport::kAuto;
  int64_t long_tokens =
      131072;            // attention is timed up to here, over the trace's rows again and again; 0: nowhere else
  std::string profile;   // the server's; empty: rsq codes
  int model_layers = 0;  // at least those recorded
};

struct Percentiles {
  double p50 = 0, p99 = 0;
};
Percentiles PercentilesOf(std::vector<double> values);

struct Report {
  // Means over queries, heads and layers.
  double recall = 0, recall_worst_head = 0;
  double attention_mass = 0, attention_covered = 0;
  double dense_covered = 0, exact_covered = 0;  // by sink and local alone, and with the exact top k
  double tokens_read = 0;                       // dense and retrieved, a head and step
  double tokens_dense = 0;                      // sink and local of them
  Percentiles step_us;    // a decode step: for each layer a token appended and its tokens retrieved, over the wire
  Percentiles layer_us;   // one layer of it
  Percentiles server_us;  // of which the server's index works
  double append_tokens_per_second = 0;  // prefill, tokens of a layer
  int64_t num_queries = 0;              // positions times query heads times layers
  double bytes_per_key = 0;             // of a head: codes; the keys kept for refine are head_dim * 2 more
  int64_t code_bytes = 0, store_bytes = 0;
  int64_t full_cache_bytes = 0;  // keys and values of the same tokens in 16 bits
  std::string simd_target;
  int threads = 1;                                             // of the server
  client::Transport transport = client::Transport::kBlocking;  // that carried the steps: never kAuto
  std::string fallback;                                        // why kAuto took gRPC; empty: it did not
};

// The settings of the replay's index.
v1::IndexSpec SpecFor(const Trace& trace, const ReplayOptions& options);

// One round trip of a step with one append and one item: microseconds from writing it to having read its answer. An
// error of the step, of its append or of its item is the call's.
absl::StatusOr<double> RoundTrip(client::DecodeStream* stream, const client::DecodeStep& step,
                                 client::DecodeAnswer* answer);

// Makes an index of its own (named for this process), fills it, decodes, judges, and deletes it again.
absl::StatusOr<Report> Replay(client::Client* client, const Trace& trace, const ReplayOptions& options);

}  // namespace seine::demo

#endif  // SEINE_CLIENT_DEMO_REPLAY_H_
