#include "kernels/huge_pages.h"

#include <sys/mman.h>

#include <new>

namespace seine {

HugePageScope::~HugePageScope() {
  current_ = nullptr;
  if (!small_) return;
  for (const auto& [data, bytes] : buffers_) madvise(data, bytes, MADV_HUGEPAGE);
}

void HugePageScope::UseSmallPages() {
  small_ = true;
  for (const auto& [data, bytes] : buffers_) madvise(data, bytes, MADV_NOHUGEPAGE);
}

void AskForHugePages(uint8_t* data, size_t bytes) {
  madvise(data, bytes, MADV_HUGEPAGE);
  if (HugePageScope::current_ == nullptr) return;
  try {
    HugePageScope::current_->buffers_.emplace_back(data, bytes);
  } catch (const std::bad_alloc&) {  // this one stays with huge pages
  }
}

}  // namespace seine
