// The CPU backend's memory: aligned, whole, fresh, and given back.
#include <sys/mman.h>

#include <cstdint>
#include <cstring>

#include "gtest/gtest.h"
#include "kernels/backend.h"

namespace seine {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;

bool IsMapped(uint8_t* data) { return msync(data, 1, MS_ASYNC) == 0; }

TEST(CpuBackendTest, BuffersAreAlignedAndWhole) {
  const auto backend = MakeCpuBackend(1);
  EXPECT_FALSE(backend->Allocate(0, MemorySpace::kStore));
  for (const size_t bytes :
       {size_t{1}, size_t{64}, size_t{4097}, kHugePage - 1, kHugePage, kHugePage + 1, 3 * kHugePage}) {
    const Buffer buffer = backend->Allocate(bytes, MemorySpace::kStore);
    ASSERT_TRUE(buffer) << bytes;
    EXPECT_EQ(buffer.size(), bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % (bytes < kHugePage ? 64 : kHugePage), 0u) << bytes;
    std::memset(buffer.data(), 7, bytes);
    EXPECT_EQ(buffer.data()[bytes - 1], 7);
  }
}

TEST(CpuBackendTest, LargeBuffersGoBackToTheSystemWhole) {
  const auto backend = MakeCpuBackend(1);
  constexpr size_t kBytes = 3 * kHugePage + 5;
  Buffer buffer = backend->Allocate(kBytes, MemorySpace::kCodes);
  ASSERT_TRUE(buffer);
  uint8_t* data = buffer.data();
  EXPECT_TRUE(IsMapped(data));
  EXPECT_TRUE(IsMapped(data + 3 * kHugePage));
  buffer = Buffer();
  for (int page = 0; page < 4; ++page) EXPECT_FALSE(IsMapped(data + page * kHugePage)) << page;
}

TEST(CpuBackendTest, MoreThanThereIsGivesAnEmptyBuffer) {
  const auto backend = MakeCpuBackend(1);
  EXPECT_FALSE(backend->Allocate(size_t{1} << 60, MemorySpace::kStore));
}

}  // namespace
}  // namespace seine
