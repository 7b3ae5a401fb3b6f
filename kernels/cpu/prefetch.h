// Asking for a cache line ahead of its use.
//
// GCC 12 takes a function that only prefetches for a pure one and drops the calls whose result is not used, which are
// all of them (its bug 114061). The empty asm makes each request an effect; it costs no instruction.
#ifndef SEINE_KERNELS_CPU_PREFETCH_H_
#define SEINE_KERNELS_CPU_PREFETCH_H_

#include <cstddef>
#include <cstdint>

namespace seine::cpu {

// Into the first cache: for what is read next, a few lines at a time.
inline void Prefetch(const void* p) {
  __builtin_prefetch(p, 0, 3);
  asm volatile("");
}

// For what is read later: it may have left the first cache by then, and is still in the second. It asks for both, as
// Prefetch does. Zen 5 is slower to answer a request to the second cache alone (prefetcht1), by up to a third
// (docs/decisions/attention/0103-short-zones-are-read-whole.md).
inline void PrefetchFar(const void* p) {
  __builtin_prefetch(p, 0, 3);
  asm volatile("");
}

// The same of every line that `bytes` from p lie in.
inline void PrefetchRange(const void* p, size_t bytes) {
  const uintptr_t begin = reinterpret_cast<uintptr_t>(p) / 64 * 64, end = reinterpret_cast<uintptr_t>(p) + bytes;
  for (uintptr_t line = begin; line < end; line += 64) PrefetchFar(reinterpret_cast<const void*>(line));
}

// For a line that will be written.
inline void PrefetchWrite(const void* p) {
  __builtin_prefetch(p, 1, 3);
  asm volatile("");
}

}  // namespace seine::cpu

#endif  // SEINE_KERNELS_CPU_PREFETCH_H_
