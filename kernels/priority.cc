#include "kernels/priority.h"

#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>

namespace seine {

namespace {
constexpr int kLowerBy = 10, kMostNice = 19;
}  // namespace

void LowerPriority(Priority priority) {
  if (priority == Priority::kUsual) return;
  if (priority == Priority::kGaps) {
    const sched_param none = {};
    sched_setscheduler(0, SCHED_IDLE, &none);
    return;
  }
  const auto thread = static_cast<id_t>(syscall(SYS_gettid));
  const int now = getpriority(PRIO_PROCESS, thread);
  setpriority(PRIO_PROCESS, thread, priority == Priority::kLow ? std::min(now + kLowerBy, kMostNice) : kMostNice);
}

}  // namespace seine
