// Decode steps against a server, and the same steps in process: what the wire costs.
//
// One step, as an engine makes it for a layer: append one token for every KV head, then ask for every KV head's top-k.
// Remote and in-process steps alternate in short runs, on indexes of the same settings that hold the same synthetic
// keys.
#ifndef SEINE_BENCH_SERVING_SERVICE_BENCH_H_
#define SEINE_BENCH_SERVING_SERVICE_BENCH_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/client.h"

namespace seine::bench {

struct ServiceOptions {
  std::string endpoint;
  client::Security security;
  bool wait_for_server = false;                                // it has just been started
  bool unary = false;                                          // else the Decode stream
  client::Transport transport = client::Transport::kBlocking;  // of the stream
  absl::Duration spin = absl::Microseconds(100);               // client::Options::spin
  int num_layers = 1;  // a step each, one behind another; all hold the same keys
  int num_kv_heads = 8;
  int group = 4;  // query heads a KV head
  int head_dim = 128;
  int64_t num_keys = 8192;  // held before the first step
  int64_t steps = 2000;
  int top_k = 100;
  double beta = .05;
  uint64_t seed = 1;
};

struct ServiceResult {
  std::vector<double> remote_us, local_us;              // a step each
  std::vector<double> remote_token_us, local_token_us;  // a token each: the steps of all layers
  std::vector<double> wire_us;  // remote steps less what the server says that its index took; the stream's only
  double bare_socket_us = 0;    // a step's bytes over a bare socket pair, beyond work as long as the step in process
  // The round trip of an empty step over shared memory, and that of two processes' bare counters in memory: medians,
  // by turns. 0 over other transports.
  double empty_step_us = 0, bare_futex_us = 0;
  int64_t errors = 0;  // steps that failed, or answered other sets than in process
  std::string first_error;
  double steps_per_s = 0;             // over the remote steps alone
  double tokens_per_s_append = 0;     // prefill by AppendStream; a token is one position of all KV heads
  double append_keys_per_s_core = 0;  // in process, one thread; a key is one position of one KV head
  std::string backend, simd_target;   // the server's
  int server_threads = 0;             // and in process
};

// Errors of the set-up. Errors of steps are counted instead.
absl::StatusOr<ServiceResult> MeasureService(const ServiceOptions& options);

// In-process appends of a whole prefill by one thread, fp16, keys stored: keys a second, the median of a few sequences.
absl::StatusOr<double> MeasureAppend(int num_kv_heads, int head_dim, uint64_t seed);

double Percentile(std::vector<double> values, double percent);  // 0 of none

}  // namespace seine::bench

#endif  // SEINE_BENCH_SERVING_SERVICE_BENCH_H_
