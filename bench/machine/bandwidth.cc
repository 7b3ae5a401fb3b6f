// See bandwidth.h.
#include "bench/machine/bandwidth.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <thread>
#include <vector>

namespace seine::bench {
namespace {

// The scan's own prefetch distance (2 KiB ahead measured best, 8 KiB halves the speed).
constexpr size_t kAhead = 2048;
constexpr size_t kStep = 256;

// Sanitizers instrument the function that chooses the clone, which runs before they do.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)
#define SEINE_WIDEST_LOADS __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define SEINE_WIDEST_LOADS
#endif

// Wrapping sums of all 64-bit words, one sum a word of a cache line: every byte is loaded, with the widest loads.
SEINE_WIDEST_LOADS uint64_t SumWords(const uint8_t* data, size_t bytes) {
  constexpr int kWords = 64 / sizeof(uint64_t);
  uint64_t sums[4][kWords] = {};
  for (size_t i = 0; i + kStep <= bytes; i += kStep) {
    for (size_t line = 0; line < 4; ++line) {
      __builtin_prefetch(data + i + kAhead + 64 * line);
      uint64_t words[kWords];
      std::memcpy(words, data + i + 64 * line, 64);
      for (int w = 0; w < kWords; ++w) sums[line][w] += words[w];
    }
  }
  uint64_t sum = 0;
  for (const auto& line : sums) {
    for (uint64_t s : line) sum += s;
  }
  return sum;
}

uint64_t ReadAll(const uint8_t* data, size_t bytes) {
  const uint64_t sum = SumWords(data, bytes);
  asm volatile("" : : "r"(sum) : "memory");  // the reads must happen
  return sum;
}

}  // namespace

// The kernel states what this core shares; glibc's sysconf multiplies it on some virtual machines.
size_t LastLevelCacheBytes() {
  std::ifstream file("/sys/devices/system/cpu/cpu0/cache/index3/size");
  size_t kib = 0;
  if (file >> kib && kib > 0) return kib << 10;
  return size_t{32} << 20;
}

MemoryProbe::MemoryProbe(Backend* backend)
    : buffer_(backend->Allocate(std::max(size_t{256} << 20, 3 * LastLevelCacheBytes()), MemorySpace::kStore)) {
  if (buffer_) std::memset(buffer_.data(), 1, buffer_.size());
}

void MemoryProbe::Measure(int passes, int threads) {
  ReadAll(buffer_.data(), buffer_.size());
  for (int p = 0; p < passes; ++p) TimedRead(buffer_.size(), threads);
}

double MemoryProbe::EvictCaches() { return TimedRead(std::min(buffer_.size(), 5 * LastLevelCacheBytes() / 2)); }

double MemoryProbe::TimedRead(size_t bytes, int threads) {
  const size_t part = bytes / threads / kStep * kStep;
  std::vector<std::thread> others;
  const auto begin = std::chrono::steady_clock::now();
  for (int t = 1; t < threads; ++t) others.emplace_back(ReadAll, buffer_.data() + t * part, part);
  ReadAll(buffer_.data(), threads == 1 ? bytes : part);
  for (std::thread& other : others) other.join();
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  const double gb_s = static_cast<double>(bytes) / seconds / 1e9;
  best_gb_s_ = std::max(best_gb_s_, gb_s);
  return gb_s;
}

}  // namespace seine::bench
