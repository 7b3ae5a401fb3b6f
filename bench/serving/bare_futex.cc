// See bare_futex.h.
#include "bench/serving/bare_futex.h"

#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <vector>

namespace seine::bench {
namespace {

using Clock = std::chrono::steady_clock;

struct Words {
  alignas(64) std::atomic<uint32_t> asked;
  alignas(64) std::atomic<uint32_t> answered;
};

void Futex(std::atomic<uint32_t>* word, int operation, uint32_t value) {
  const timespec timeout = {1, 0};
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), operation, value, &timeout, nullptr, 0);
}

void Give(std::atomic<uint32_t>* word, uint32_t value, bool spin) {
  word->store(value);
  if (!spin) Futex(word, FUTEX_WAKE, 1);
}

void Await(std::atomic<uint32_t>* word, uint32_t value, bool spin) {
  for (uint32_t seen = word->load(); seen != value; seen = word->load()) {
    if (!spin) Futex(word, FUTEX_WAIT, seen);
  }
}

}  // namespace

absl::StatusOr<double> MeasureBareFutex(const BareFutexOptions& o) {
  void* const shared = mmap(nullptr, sizeof(Words), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) return absl::ErrnoToStatus(errno, "mmap");
  auto* const words = static_cast<Words*>(shared);
  const auto rounds = static_cast<uint32_t>(o.rounds);
  const pid_t child = fork();
  if (child < 0) return absl::ErrnoToStatus(errno, "fork");
  if (child == 0) {
    for (uint32_t i = 1; i <= rounds; ++i) {
      Await(&words->asked, i, o.spin);
      Give(&words->answered, i, o.spin);
    }
    _exit(0);
  }
  std::vector<double> us;
  for (uint32_t i = 1; i <= rounds; ++i) {
    const Clock::time_point begin = Clock::now();
    Give(&words->asked, i, o.spin);
    Await(&words->answered, i, o.spin);
    if (i > rounds / 10) us.push_back(std::chrono::duration<double, std::micro>(Clock::now() - begin).count());
  }
  waitpid(child, nullptr, 0);
  munmap(shared, sizeof(Words));
  std::nth_element(us.begin(), us.begin() + us.size() / 2, us.end());
  return us[us.size() / 2];
}

}  // namespace seine::bench
