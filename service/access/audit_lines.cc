#include "service/access/audit_lines.h"

#include <unistd.h>

#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>

#include "kernels/thread_name.h"
#include "service/line_writer.h"

namespace seine {

struct AuditLines::State {
  using Clock = std::chrono::steady_clock;

  // Waits, with `lock` held, until `settled` lines are written or lost; false: the file took none for kPatience.
  bool WaitFor(int64_t settled, std::unique_lock<std::mutex>* lock) {
    while (done < settled) {
      if (Clock::now() - moved >= kPatience) return false;
      changed.wait_until(*lock, moved + kPatience);
    }
    return true;
  }

  std::mutex mutex;
  std::condition_variable changed;
  // All guarded by mutex.
  std::deque<std::string> waiting;
  int64_t taken = 0, done = 0;  // lines
  Clock::time_point moved;      // when a line was last written, or the first of those that wait came
  std::function<void(const std::string&)> failed;
  bool ended = false;
  int fd = -1;
};

AuditLines::AuditLines(int fd, bool cut, std::function<void(const std::string&)> failed)
    : state_(std::make_shared<State>()) {
  state_->fd = fd;
  state_->failed = std::move(failed);
  std::thread([state = state_, cut] { Run(state, cut); }).detach();
}

AuditLines::~AuditLines() {
  std::unique_lock<std::mutex> lock(state_->mutex);
  state_->ended = true;
  state_->changed.notify_all();
  if (!state_->WaitFor(state_->taken, &lock)) state_->failed("lines wait for a file that takes none");
  state_->failed = nullptr;
}

void AuditLines::Write(std::string line) {
  std::unique_lock<std::mutex> lock(state_->mutex);
  if (state_->waiting.size() >= kMostWaiting) return state_->failed("a line is lost: too many wait");
  if (state_->taken == state_->done) state_->moved = State::Clock::now();
  state_->waiting.push_back(std::move(line));
  const int64_t own = ++state_->taken;
  state_->changed.notify_all();
  state_->WaitFor(own, &lock);
}

void AuditLines::Run(const std::shared_ptr<State>& state, bool cut) {
  NameThread("audit");
  std::unique_lock<std::mutex> lock(state->mutex);
  LineWriter out(state->fd, cut);
  for (;;) {
    state->changed.wait(lock, [&] { return state->ended || !state->waiting.empty(); });
    if (state->waiting.empty()) break;
    const std::string line = std::move(state->waiting.front());
    state->waiting.pop_front();
    lock.unlock();
    const bool written = out.Write(line);
    const int error = errno;
    lock.lock();
    if (!written && state->failed) state->failed(std::string("a line is lost: ") + std::strerror(error));
    ++state->done;
    state->moved = State::Clock::now();
    state->changed.notify_all();
  }
  close(state->fd);
}

}  // namespace seine
