// The floor under a decode step over the wire: the same bytes there and back over a Unix socket pair between two
// threads, the other side busy for as long as the index would be, and nothing else. What is left is the system's own
// cost of two writes, two reads and, unless both sides spin, two wake-ups.
#ifndef SEINE_BENCH_SERVING_BARE_SOCKET_H_
#define SEINE_BENCH_SERVING_BARE_SOCKET_H_

#include <cstddef>

#include "absl/status/statusor.h"

namespace seine::bench {

struct BareSocketOptions {
  size_t request_bytes = 0, response_bytes = 0;
  double work_us = 0;  // of the answering side, spun away
  bool spin = false;   // both sides wait in a loop instead of asleep
  int steps = 300;
};

// Median microseconds of a round trip less work_us.
absl::StatusOr<double> MeasureBareSocket(const BareSocketOptions& options);

}  // namespace seine::bench

#endif  // SEINE_BENCH_SERVING_BARE_SOCKET_H_
