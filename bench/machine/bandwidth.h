// What one core of this machine, or several, can read from memory, and a way to make it forget what it has read.
#ifndef SEINE_BENCH_MACHINE_BANDWIDTH_H_
#define SEINE_BENCH_MACHINE_BANDWIDTH_H_

#include <cstddef>

#include "kernels/backend.h"

namespace seine::bench {

// Bytes of the last-level cache as the system states it; 32 MiB where it does not.
size_t LastLevelCacheBytes();

// A buffer of the backend's own memory (huge pages as the index has them), far beyond the last-level cache.
class MemoryProbe {
 public:
  // `ok` is false if the memory could not be had.
  explicit MemoryProbe(Backend* backend);
  bool ok() const { return static_cast<bool>(buffer_); }

  // One thread reads the whole buffer in order, `passes` times after one that does not count. Of several, each reads
  // its part.
  void Measure(int passes, int threads = 1);

  // The best GB/s of any read so far, evictions too: what the machine can do when nothing else takes a part of it.
  double best_gb_s() const { return best_gb_s_; }

  // Reads more than twice the last-level cache, so that what was read before has to come from memory again.
  // Returns the GB/s that it read at: the machine's bandwidth at this very moment, other programs' share taken off.
  double EvictCaches();

 private:
  double TimedRead(size_t bytes, int threads = 1);
  Buffer buffer_;
  double best_gb_s_ = 0;
};

}  // namespace seine::bench

#endif  // SEINE_BENCH_MACHINE_BANDWIDTH_H_
