#include "service/transport/sockets/descriptors.h"

#include <dirent.h>
#include <sys/resource.h>

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace seine {

absl::Status RaiseDescriptorLimit() {
  rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return absl::OkStatus();
  const rlim_t before = limit.rlim_cur;
  limit.rlim_cur = limit.rlim_max;
  const rlim_t now = setrlimit(RLIMIT_NOFILE, &limit) == 0 ? limit.rlim_max : before;
  if (now >= DescriptorLimit::kLeast) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("the system allows ", now, " open files (ulimit -n), and at least ",
                                                    DescriptorLimit::kLeast, " are needed"));
}

int OpenDescriptors() {
  DIR* const folder = opendir("/proc/self/fd");
  if (folder == nullptr) return 0;
  int count = -3;  // ".", "..", and the folder itself
  while (readdir(folder) != nullptr) ++count;
  closedir(folder);
  return count;
}

DescriptorLimit::DescriptorLimit() : most_(0) {
  rlimit limit;
  const int own = OpenDescriptors();
  int64_t allowed = own + kMostConnections + kReserve;
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
    allowed = std::min<int64_t>(allowed, static_cast<int64_t>(limit.rlim_cur));
  }
  most_ = static_cast<int>(allowed - kReserve);
}

bool DescriptorLimit::Admits(int each) {
  if ((upper_bound_ += each) <= most_) return true;
  const auto now = std::chrono::steady_clock::now();
  if (full_ && now - counted_ < std::chrono::milliseconds(10)) return false;
  counted_ = now;
  upper_bound_ = OpenDescriptors();
  full_ = upper_bound_ + each - 1 > most_;  // one of them is open already
  return !full_;
}

}  // namespace seine
