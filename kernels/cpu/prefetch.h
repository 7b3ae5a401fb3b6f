// Asking for a cache line ahead of its use.
//
// GCC 12 takes a function that only prefetches for a pure one and drops the calls whose result is not used, which are
// all of them (its bug 114061). The empty asm makes each request an effect; it costs no instruction.
#ifndef SEINE_KERNELS_CPU_PREFETCH_H_
#define SEINE_KERNELS_CPU_PREFETCH_H_

namespace seine::cpu {

// Into the first cache: for what is read next, a few lines at a time.
inline void Prefetch(const void* p) {
  __builtin_prefetch(p, 0, 3);
  asm volatile("");
}

// Into the second cache: there far more lines may be under way than the first has buffers for.
inline void PrefetchFar(const void* p) {
  __builtin_prefetch(p, 0, 2);
  asm volatile("");
}

// For a line that will be written.
inline void PrefetchWrite(const void* p) {
  __builtin_prefetch(p, 1, 3);
  asm volatile("");
}

}  // namespace seine::cpu

#endif  // SEINE_KERNELS_CPU_PREFETCH_H_
