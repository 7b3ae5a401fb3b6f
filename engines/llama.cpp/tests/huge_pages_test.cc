// Memory that is put into huge pages keeps its contents, and as much of it lies in them as was said.
#include "engines/llama.cpp/cells/huge_pages.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstdint>
#include <fstream>
#include <sstream>
#include <string>

namespace seine::llama {
namespace {

constexpr int64_t kPage = 2 << 20, kBytes = 4 * kPage;

// Bytes of the mapping at `memory` that the kernel says are in huge pages.
int64_t BytesInHugePages(const void* memory) {
  std::ostringstream wanted;
  wanted << std::hex << reinterpret_cast<uintptr_t>(memory) << "-";
  std::ifstream smaps("/proc/self/smaps");
  bool found = false;
  for (std::string line; std::getline(smaps, line);) {
    if (line.find(wanted.str()) == 0) found = true;
    if (found && line.find("AnonHugePages:") == 0) return std::stoll(line.substr(14)) * 1024;
  }
  return -1;
}

class HugePagesTest : public testing::Test {
 protected:
  HugePagesTest() {
    memory_ = static_cast<uint8_t*>(mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    madvise(memory_, kBytes, MADV_NOHUGEPAGE);
    for (int64_t i = 0; i < kBytes; ++i) memory_[i] = Byte(i);
  }
  ~HugePagesTest() override { munmap(memory_, kBytes); }

  static uint8_t Byte(int64_t i) { return static_cast<uint8_t>(i * 2654435761u >> 24); }
  // The mapping is one again, so that smaps has one entry of it.
  int64_t InHugePages() {
    madvise(memory_, kBytes, MADV_HUGEPAGE);
    return BytesInHugePages(memory_);
  }

  uint8_t* memory_;
};

TEST_F(HugePagesTest, ContentsStay) {
  HugePages pages(memory_, kBytes);
  const int64_t covered = pages.Cover(memory_, kBytes);
  EXPECT_EQ(covered, InHugePages());
  EXPECT_EQ(pages.refused(), covered == 0);
  for (int64_t i = 0; i < kBytes; ++i) ASSERT_EQ(memory_[i], Byte(i)) << i;
  EXPECT_EQ(pages.Cover(memory_, kBytes), 0);  // once is enough
}

TEST_F(HugePagesTest, WhatLiesOutsideStaysAsItIs) {
  HugePages pages(memory_ + 1, kPage);  // which holds no whole page
  EXPECT_EQ(pages.Cover(memory_, kPage), 0);
  EXPECT_EQ(pages.Cover(memory_ + 2 * kPage, kPage), 0);
  EXPECT_EQ(InHugePages(), 0);
}

}  // namespace
}  // namespace seine::llama
