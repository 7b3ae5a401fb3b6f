// How long a family takes no changes while it moves between two servers, under load: a decoder appends to it all along.
#ifndef SEINE_BENCH_SERVING_FLEET_MIGRATE_BENCH_H_
#define SEINE_BENCH_SERVING_FLEET_MIGRATE_BENCH_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace seine::bench {

struct MigrateOptions {
  std::string spawn;   // seined, started twice with one thread each
  std::string folder;  // of the snapshots, on the disk to be measured; empty: a temporary one
  std::vector<int64_t> num_keys = {2048, 32768};  // tokens of the family's layer, measured one after another
  int num_kv_heads = 8;
  int head_dim = 128;
  int64_t moves = 20;  // there and back
  uint64_t seed = 1;
};

// What all moves of a family gave. Times are milliseconds, of all moves as median and 99th percentile.
struct MigratePoint {
  int64_t num_keys = 0;
  double pause_p50_ms = 0, pause_p99_ms = 0;  // frozen, as the mover saw it
  double stall_p50_ms = 0, stall_p99_ms = 0;  // the longest append of each move, as the decoder saw it
  double append_p50_ms = 0;                   // an append
  double snapshot_bytes = 0, last_bytes = 0;  // a move; last_bytes: written while the family was frozen
  int64_t whole = 0;                          // moves that have written everything while it was
  int64_t appends = 0, failed = 0;            // of one token; failed: neither MOVING nor MOVED explains it
};

// The decoder follows by FleetClient::Run. Checks at the end that the family holds what was acknowledged: INTERNAL.
// UNAVAILABLE: a server did not start. Other errors are those of a move.
absl::StatusOr<std::vector<MigratePoint>> MeasureMigration(const MigrateOptions& options);

}  // namespace seine::bench

#endif  // SEINE_BENCH_SERVING_FLEET_MIGRATE_BENCH_H_
