// Threads that make way for all others: the system gives them a processor where nobody else wants it, and a small share
// where somebody does.
#ifndef SEINE_KERNELS_PRIORITY_H_
#define SEINE_KERNELS_PRIORITY_H_

#include <cstdint>

namespace seine {

// How a thread stands beside the process's other threads.
enum class Priority : uint8_t {
  kUsual,
  kLow,     // nice 10 more: about a tenth of a processor beside one usual thread
  kLowest,  // nice 19: about a hundredth
  kGaps,    // SCHED_IDLE: what no other thread wants, and beside one that computes 3 parts of 1,027
};

// Lowers this thread's priority for the rest of its life: without a privilege it cannot be raised again. Nothing
// depends on it: where the system refuses, the thread stays as it is.
void LowerPriority(Priority priority);

}  // namespace seine

#endif  // SEINE_KERNELS_PRIORITY_H_
