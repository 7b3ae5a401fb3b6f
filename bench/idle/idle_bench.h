// Decode steps over many more sequences than memory holds, while an idle tier writes families out and brings them back.
#ifndef SEINE_BENCH_IDLE_IDLE_BENCH_H_
#define SEINE_BENCH_IDLE_IDLE_BENCH_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace seine::bench {

struct IdleBenchOptions {
  int sequences = 100;  // every fourth is a fork of the one before it
  double ratio = 10;    // of what all of them take to what memory may hold
  int64_t tokens = 2048, steps = 2000;
  int layers = 4, kv_heads = 2, group = 2, head_dim = 64;
  double zipf = 1;  // the sequence of rank r is asked in proportion to 1 / r^zipf
  int threads = 2;  // that make steps; the backend has one
  std::string folder = ".";
};

struct IdleBenchResult {
  int64_t bytes = 0, limit_bytes = 0;  // of all sequences together; of memory
  int64_t disk_bytes = 0;              // in files, at the end
  int64_t steps = 0, refused = 0;
  int64_t checked = 0, wrong = 0;                // answers of a layer each
  int64_t restores = 0, spills = 0, failed = 0;  // during the steps; `failed`: of both
  // Milliseconds of steps on a sequence that was on disk (first_step), and on one in memory (step).
  struct Times {
    int64_t count = 0;
    double p50_ms = 0, p99_ms = 0, most_ms = 0;
  } first_step, step;
};

// A step appends a token to every layer and attends. Each answer is compared, bit for bit, with that of an index that
// holds every sequence in memory; its time does not count. INVALID_ARGUMENT where memory would not hold a family for
// each thread; errors of indexes and files. What it writes is removed.
absl::StatusOr<IdleBenchResult> MeasureIdle(const IdleBenchOptions& options);

}  // namespace seine::bench

#endif  // SEINE_BENCH_IDLE_IDLE_BENCH_H_
