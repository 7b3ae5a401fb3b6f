// Speed of writing a family of sequences to a file and reading it back, beside plain writes and reads of as many bytes,
// and what decode steps feel of it.
#ifndef SEINE_BENCH_MEASURES_SNAPSHOT_H_
#define SEINE_BENCH_MEASURES_SNAPSHOT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace seine::bench {

struct SnapshotBenchOptions {
  double gib = 1;  // of rows and codes
  int layers = 8, kv_heads = 8, group = 4, head_dim = 128;
  int repeat = 3;       // rounds, of which medians are told
  int forks = 8;        // of the family that is written once
  int threads = 0;      // of the backend; 0: one a core
  bool cached = false;  // files are read from the page cache, not from the disk
  std::string folder = ".";
};

struct SnapshotBenchResult {
  int64_t tokens = 0, bytes = 0;  // of a layer; of the file
  // Medians, in bytes a second. Plain: write() of one buffer and fsync; read() into memory that is new, as a restore's.
  double write = 0, plain_write = 0, read = 0, plain_read = 0;
  // Decode steps of one layer (append a token, attend): alone, while their sequence is written, and while another one
  // is read into their index.
  struct Steps {
    int64_t count = 0;
    double p50_us = 0, p99_us = 0, most_us = 0;
  } quiet, beside_write, beside_read;
  double busy_write = 0, busy_read = 0;       // medians beside these steps, in bytes a second
  int64_t alone_bytes = 0, family_bytes = 0;  // of a sequence, and of it with its forks
};

// Errors of the index and of files. What it writes is removed.
absl::StatusOr<SnapshotBenchResult> MeasureSnapshot(const SnapshotBenchOptions& options);

}  // namespace seine::bench

#endif  // SEINE_BENCH_MEASURES_SNAPSHOT_H_
