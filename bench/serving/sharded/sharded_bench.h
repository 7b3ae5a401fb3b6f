// A trace's layer striped over several servers beside the same layer on one: what a step takes, and how near both come
// to dense attention.
#ifndef SEINE_BENCH_SERVING_SHARDED_SHARDED_BENCH_H_
#define SEINE_BENCH_SERVING_SHARDED_SHARDED_BENCH_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/client.h"

namespace seine::bench {

struct ShardedBenchOptions {
  std::string trace;
  int layer = -1;  // of the trace; -1: its last
  std::vector<int> shards = {1, 2, 4};
  std::vector<std::string> endpoints;  // servers; shards beyond them take turns
  client::Security security;
  bool wait_for_server = false;  // they have just been started
  int64_t run = 512;             // positions of a run
  int top_k = 100;
  bool full_top_k = false, choose_first = false;  // client::ShardedOptions
  int64_t steps = 128;                            // questions, spread over the trace's
};

// Errors are |output - dense| / |dense| of a query head, means over heads and questions.
struct ShardedPoint {
  int shards = 0;
  std::vector<double> step_us, node_us, exact_us;  // Attend by index: striped and on one node, by turns; exact, striped
  double attended = 0;                             // tokens a query head, of the index's answers
  double error = 0, node_error = 0;                // of the index's answers; one node's at the same top_k
  double node_error_as_many = 0;                   // one node's at as many attended tokens
  double merge_error = 0;                          // exact answers: the largest |striped - one node's| of an output
};

struct ShardedBenchResult {
  std::string source;
  int64_t num_tokens = 0;
  int num_q_heads = 0, num_kv_heads = 0, head_dim = 0;
  std::vector<ShardedPoint> points;
};

absl::StatusOr<ShardedBenchResult> MeasureSharded(const ShardedBenchOptions& options);

}  // namespace seine::bench

#endif  // SEINE_BENCH_SERVING_SHARDED_SHARDED_BENCH_H_
