#include "engines/python/paged/huge_pages.h"

#include <sys/mman.h>

#include <cstring>
#include <fstream>
#include <sstream>
#include <string>

namespace seine::python {
namespace {

constexpr uintptr_t kHugePage = uintptr_t{2} << 20;

bool SystemAllows() {
  std::ifstream file("/sys/kernel/mm/transparent_hugepage/enabled");
  std::string line;
  return std::getline(file, line) && line.find("[never]") == std::string::npos;
}

// Whether the kernel gives zeros anew for all that is given back of [begin, end).
bool IsAnonymous(uintptr_t begin, uintptr_t end) {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; begin < end && std::getline(maps, line);) {
    std::istringstream fields(line);
    uintptr_t from = 0, to = 0;
    char dash = 0;
    std::string rights, offset, device;
    uint64_t inode = 1;
    fields >> std::hex >> from >> dash >> to >> rights >> offset >> device >> std::dec >> inode;
    if (!fields || to <= begin) continue;
    if (from > begin || rights.back() != 'p' || inode != 0) return false;
    begin = to;
  }
  return begin >= end;
}

bool IsZero(const uint8_t* page) { return page[0] == 0 && std::memcmp(page, page + 1, kHugePage - 1) == 0; }

}  // namespace

int64_t AskForHugePages(void* begin, size_t bytes) {
  const auto at = reinterpret_cast<uintptr_t>(begin);
  const uintptr_t first = (at + kHugePage - 1) / kHugePage * kHugePage, end = (at + bytes) / kHugePage * kHugePage;
  if (first >= end || !SystemAllows() || !IsAnonymous(first, end)) return 0;
  if (madvise(reinterpret_cast<void*>(first), end - first, MADV_HUGEPAGE) != 0) return 0;
  int64_t given_back = 0;
  for (uintptr_t page = first; page < end; page += kHugePage) {
    auto* const memory = reinterpret_cast<uint8_t*>(page);
    if (IsZero(memory) && madvise(memory, kHugePage, MADV_DONTNEED) == 0) given_back += static_cast<int64_t>(kHugePage);
  }
  return given_back;
}

}  // namespace seine::python
