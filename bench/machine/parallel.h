// A loop over independent pieces on every core, for the untimed parts of a bench.
#ifndef SEINE_BENCH_MACHINE_PARALLEL_H_
#define SEINE_BENCH_MACHINE_PARALLEL_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "kernels/machine/limits.h"

namespace seine::bench {

// Calls body(i) for i in [0, count), each once, from up to one thread a core.
template <typename Body>
void ParallelFor(int64_t count, const Body& body) {
  std::atomic<int64_t> next{0};
  const auto work = [&] {
    for (int64_t i; (i = next.fetch_add(1)) < count;) body(i);
  };
  const int64_t threads = std::min<int64_t>(count, DefaultThreads());
  std::vector<std::thread> others;
  for (int64_t t = 1; t < threads; ++t) others.emplace_back(work);
  work();
  for (std::thread& t : others) t.join();
}

}  // namespace seine::bench

#endif  // SEINE_BENCH_MACHINE_PARALLEL_H_
