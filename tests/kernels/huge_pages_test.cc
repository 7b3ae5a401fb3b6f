// Large buffers lie in huge pages, but for what a scope has said of those that were allocated in it.
#include "kernels/huge_pages.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <string>

#include "kernels/backend.h"

namespace seine {
namespace {

constexpr size_t kBytes = size_t{6} << 20;

// What the system has been told of the memory at `data`: "hg", "nh", or nothing.
std::string AdviceOf(const uint8_t* data) {
  std::ifstream maps("/proc/self/smaps");
  const auto at = reinterpret_cast<uintptr_t>(data);
  bool here = false;
  for (std::string line; std::getline(maps, line);) {
    uintptr_t begin = 0, end = 0;
    if (sscanf(line.c_str(), "%lx-%lx ", &begin, &end) == 2) here = begin <= at && at < end;
    if (!here || line.rfind("VmFlags:", 0) != 0) continue;
    for (const char* advice : {"hg", "nh"}) {
      if (line.find(std::string(" ") + advice) != std::string::npos) return advice;
    }
  }
  return "";
}

TEST(HugePagesTest, AScopeMayAskForSmallOnes) {
  const auto backend = MakeCpuBackend(1);
  const Buffer before = backend->Allocate(kBytes, MemorySpace::kStore);
  EXPECT_EQ(AdviceOf(before.data()), "hg");  // of every Linux that has huge pages
  Buffer inside;
  {
    HugePageScope pages;
    inside = backend->Allocate(kBytes, MemorySpace::kCodes);
    EXPECT_EQ(AdviceOf(inside.data()), "hg");
    pages.UseSmallPages();
    EXPECT_EQ(AdviceOf(inside.data()), "nh");
    EXPECT_EQ(AdviceOf(before.data()), "hg");
  }
  EXPECT_EQ(AdviceOf(inside.data()), "hg");
  const Buffer after = backend->Allocate(kBytes, MemorySpace::kStore);
  EXPECT_EQ(AdviceOf(after.data()), "hg");
}

}  // namespace
}  // namespace seine
