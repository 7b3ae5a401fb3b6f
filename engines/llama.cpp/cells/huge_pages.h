// The engine's cache in huge pages. Rows that an index chooses lie far apart: in pages of 4 KiB nearly each of them
// costs a walk of the page table as well.
#ifndef SEINE_ENGINES_LLAMA_CPP_CELLS_HUGE_PAGES_H_
#define SEINE_ENGINES_LLAMA_CPP_CELLS_HUGE_PAGES_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace seine::llama {

// Puts one piece of memory into huge pages; its contents stay what they are. Not thread-safe.
class HugePages {
 public:
  // `begin`: of `bytes` bytes that are mapped for as long as this lives. It asks for nothing where the system's setting
  // is "never".
  HugePages(const void* begin, size_t bytes);

  // Makes huge pages of those that hold [begin, begin + bytes), each once: a copy of 2 MiB. Returns how many bytes of
  // the memory lie in new ones. Where the kernel refuses, they stay as they are, and it is not asked again.
  int64_t Cover(const void* begin, size_t bytes);

  bool refused() const { return refused_; }

 private:
  uintptr_t first_ = 0;      // of the whole huge pages in the memory
  std::vector<bool> asked_;  // a page each
  bool refused_ = false;
};

}  // namespace seine::llama

#endif  // SEINE_ENGINES_LLAMA_CPP_CELLS_HUGE_PAGES_H_
