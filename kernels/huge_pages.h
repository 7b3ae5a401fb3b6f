// Large buffers of the CPU backend come in huge pages (2 MiB), which searches read faster. The first touch of one takes
// .15 ms of its processor, and 5 ms where a virtual machine's host has to find the memory first; a thread that waits
// for this processor meanwhile waits for the next tick.
#ifndef SEINE_KERNELS_HUGE_PAGES_H_
#define SEINE_KERNELS_HUGE_PAGES_H_

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace seine {

// Knows the large buffers that its thread allocates of CPU backends while it is there. One a thread. It throws nothing:
// a buffer that it has no memory to know keeps huge pages.
class HugePageScope {
 public:
  HugePageScope() { current_ = this; }
  // What has come in small pages may be put together by the system, in its own time (khugepaged).
  ~HugePageScope();
  HugePageScope(const HugePageScope&) = delete;
  HugePageScope& operator=(const HugePageScope&) = delete;

  // Has the kernel give small pages (4 KiB) for what has not been touched yet. By any thread, while none allocates.
  void UseSmallPages();

 private:
  friend void AskForHugePages(uint8_t* data, size_t bytes);
  inline static thread_local constinit HugePageScope* current_ = nullptr;

  std::vector<std::pair<uint8_t*, size_t>> buffers_;
  bool small_ = false;
};

// Asks the kernel for huge pages in the `bytes` from `data`, a page's begin, that mmap has given and nobody has
// touched. A kernel that refuses costs speed only. Thread-safe.
void AskForHugePages(uint8_t* data, size_t bytes);

}  // namespace seine

#endif  // SEINE_KERNELS_HUGE_PAGES_H_
