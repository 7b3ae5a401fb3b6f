// See progress.h.
#include "bench/report/progress.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>

namespace seine::bench {

Progress::Progress(int64_t total) : total_(std::max<int64_t>(1, total)), terminal_(isatty(STDERR_FILENO) != 0) {}

Progress::~Progress() {
  if (drawn_ && terminal_) std::fputs("\r\033[K", stderr);
}

void Progress::Step(const std::string& what, int64_t steps) {
  done_ = std::min(total_, done_ + steps);
  if (Clock::now() < next_) return;
  Draw(what);
  next_ = Clock::now() + (terminal_ ? std::chrono::milliseconds(100) : std::chrono::milliseconds(10000));
}

void Progress::Draw(const std::string& what) {
  constexpr int kWidth = 30;
  const int full = static_cast<int>(kWidth * done_ / total_), percent = static_cast<int>(100 * done_ / total_);
  const double seconds = std::chrono::duration<double>(Clock::now() - begin_).count();
  const double left = done_ > 0 ? seconds * static_cast<double>(total_ - done_) / static_cast<double>(done_) : 0;
  if (terminal_) {
    const std::string bar = std::string(full, '=') + std::string(kWidth - full, ' ');
    std::fprintf(stderr, "\r\033[K[%s] %3d%%  %.0f s left  %s", bar.c_str(), percent, left, what.c_str());
  } else {
    std::fprintf(stderr, "%3d%%  %.0f s, %.0f s left  %s\n", percent, seconds, left, what.c_str());
  }
  std::fflush(stderr);
  drawn_ = true;
}

}  // namespace seine::bench
