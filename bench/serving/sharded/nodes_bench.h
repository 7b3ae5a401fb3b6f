// What one layer's step takes of several nodes and of the engine that asks them: the constants of a plan for many more
// nodes (client/python/seine_kv/sharded/simulate.py).
#ifndef SEINE_BENCH_SERVING_SHARDED_NODES_BENCH_H_
#define SEINE_BENCH_SERVING_SHARDED_NODES_BENCH_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace seine::bench {

struct NodesOptions {
  std::string spawn;  // seined, started once a node with one thread
  int nodes = 4;
  std::vector<int64_t> num_keys = {2048, 8192, 32768};  // a node, measured one after another
  int num_kv_heads = 8;
  int group = 4;  // query heads a KV head
  int head_dim = 128;
  int top_k = 100;  // of each node
  int64_t steps = 200;
  uint64_t seed = 1;
};

// Medians over steps. A step attends; its keys and values are synthetic.
struct NodesPoint {
  int64_t num_keys = 0;  // a node
  double node_us = 0;    // the index of one node, as its server says; no other node works meanwhile
  double step_us = 0;    // the same step as the engine sees it
  double all_us = 0;     // a step of all nodes at once, merged; they share the cores of this machine
  double engine_us = 0;  // the engine's processor time of such a step, over the nodes: send, read, parse
  double merge_us = 0;   // the merging of all answers, over the nodes
  double bytes_there = 0, bytes_back = 0;  // of a step and node, with gRPC's framing
  double token_bytes = 0;                  // that a node holds for a token of all KV heads: rows and codes
};

// UNAVAILABLE: a server did not start or ended. Errors of a step end the measurement.
absl::StatusOr<std::vector<NodesPoint>> MeasureNodes(const NodesOptions& options);

}  // namespace seine::bench

#endif  // SEINE_BENCH_SERVING_SHARDED_NODES_BENCH_H_
