#include "engines/llama.cpp/remote/give_back.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

namespace seine::llama {

bool IsZeros(const void* data, size_t bytes) {
  const auto* const first = static_cast<const char*>(data);
  return bytes == 0 || (*first == 0 && std::memcmp(first, first + 1, bytes - 1) == 0);
}

void GiveBackMemory(uint8_t* begin, size_t bytes) {
  static const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  uint8_t* const end = begin + bytes;
  auto* const first = reinterpret_cast<uint8_t*>((reinterpret_cast<uintptr_t>(begin) + page - 1) / page * page);
  auto* const last = reinterpret_cast<uint8_t*>(reinterpret_cast<uintptr_t>(end) / page * page);
  const bool given = first < last && madvise(first, last - first, MADV_DONTNEED) == 0 &&
                     IsZeros(first, page);  // of a file they would be read again
  std::memset(begin, 0, (given ? first : end) - begin);
  if (given) std::memset(last, 0, end - last);
}

void GiveBackZeros(uint8_t* begin, size_t bytes) {
  constexpr size_t kPart = 1 << 16;
  for (size_t at = 0; at < bytes; at += kPart) {
    const size_t part = std::min(kPart, bytes - at);
    if (IsZeros(begin + at, part)) GiveBackMemory(begin + at, part);
  }
}

}  // namespace seine::llama
