// The least that a message and its answer can cost over shared memory: two processes that pass a counter to and fro,
// and spin for it or sleep in a futex.
#ifndef SEINE_BENCH_SERVING_BARE_FUTEX_H_
#define SEINE_BENCH_SERVING_BARE_FUTEX_H_

#include "absl/status/statusor.h"

namespace seine::bench {

struct BareFutexOptions {
  bool spin = false;  // else each side sleeps at once, and is woken each time
  int rounds = 5000;
};

// The median of a round's microseconds, of all rounds but the first tenth.
absl::StatusOr<double> MeasureBareFutex(const BareFutexOptions& options);

}  // namespace seine::bench

#endif  // SEINE_BENCH_SERVING_BARE_FUTEX_H_
