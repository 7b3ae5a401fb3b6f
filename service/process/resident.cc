#include "service/process/resident.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>

namespace seine {
namespace {

struct Taken {
  int64_t all = 0, resident = 0;  // bytes
};

Taken Read() {
  char text[128];
  const int fd = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return {};
  const ssize_t count = read(fd, text, sizeof(text) - 1);
  close(fd);
  if (count <= 0) return {};
  text[count] = 0;
  long long all = 0, resident = 0;
  if (sscanf(text, "%lld %lld", &all, &resident) != 2) return {};
  const long page = sysconf(_SC_PAGESIZE);
  return {all * page, resident * page};
}

}  // namespace

int64_t ResidentBytes() { return Read().resident; }

int64_t AddressBytes() { return Read().all; }

}  // namespace seine
