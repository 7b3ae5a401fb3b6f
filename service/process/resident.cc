#include "service/process/resident.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>

namespace seine {

int64_t ResidentBytes() {
  char text[128];
  const int fd = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  const ssize_t count = read(fd, text, sizeof(text) - 1);
  close(fd);
  if (count <= 0) return 0;
  text[count] = 0;
  long long all = 0, resident = 0;
  if (sscanf(text, "%lld %lld", &all, &resident) != 2) return 0;
  return resident * sysconf(_SC_PAGESIZE);
}

}  // namespace seine
