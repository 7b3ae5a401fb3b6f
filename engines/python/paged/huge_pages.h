// Huge pages for an engine's cache that is still empty. Rows that an index chooses lie far apart: in pages of 4 KiB
// nearly each of them costs a walk of the page table as well.
#ifndef SEINE_ENGINES_PYTHON_PAGED_HUGE_PAGES_H_
#define SEINE_ENGINES_PYTHON_PAGED_HUGE_PAGES_H_

#include <cstddef>
#include <cstdint>

namespace seine::python {

// Asks the kernel for huge pages (2 MiB) in [begin, begin + bytes). What is there in small pages stays in these, but
// for zeros: such pages are given back, and come anew as huge ones when they are written. Contents stay what they are.
// Returns how many bytes are in pages that come so: 0 where the kernel or the system's setting refuses, or the memory
// is a file's or shared. Nobody may write there meanwhile.
int64_t AskForHugePages(void* begin, size_t bytes);

}  // namespace seine::python

#endif  // SEINE_ENGINES_PYTHON_PAGED_HUGE_PAGES_H_
