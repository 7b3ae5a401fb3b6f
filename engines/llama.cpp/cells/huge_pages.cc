// MADV_COLLAPSE, of Linux 6.1 and later, copies at once what the kernel's own thread would come to in minutes.
#include "engines/llama.cpp/cells/huge_pages.h"

#include <sys/mman.h>

#include <algorithm>
#include <fstream>
#include <string>

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

namespace seine::llama {

namespace {

constexpr uintptr_t kHugePage = uintptr_t{2} << 20;

bool SystemAllows() {
  std::ifstream file("/sys/kernel/mm/transparent_hugepage/enabled");
  std::string line;
  return std::getline(file, line) && line.find("[never]") == std::string::npos;
}

}  // namespace

HugePages::HugePages(const void* begin, size_t bytes) {
  const auto at = reinterpret_cast<uintptr_t>(begin), end = (at + bytes) / kHugePage * kHugePage;
  first_ = (at + kHugePage - 1) / kHugePage * kHugePage;
  if (end > first_) asked_.resize((end - first_) / kHugePage);
  refused_ = !SystemAllows();
}

int64_t HugePages::Cover(const void* begin, size_t bytes) {
  const uintptr_t from = std::max(reinterpret_cast<uintptr_t>(begin), first_);
  const uintptr_t to = std::min(reinterpret_cast<uintptr_t>(begin) + bytes, first_ + asked_.size() * kHugePage);
  int64_t covered = 0;
  for (uintptr_t page = (from - first_) / kHugePage; first_ + page * kHugePage < to && !refused_; ++page) {
    if (asked_[page]) continue;
    asked_[page] = true;
    void* memory = reinterpret_cast<void*>(first_ + page * kHugePage);
    refused_ = madvise(memory, kHugePage, MADV_HUGEPAGE) != 0 || madvise(memory, kHugePage, MADV_COLLAPSE) != 0;
    if (!refused_) covered += static_cast<int64_t>(kHugePage);
  }
  return covered;
}

}  // namespace seine::llama
