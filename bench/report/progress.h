// A progress bar on stderr for whatever takes longer than two seconds.
#ifndef SEINE_BENCH_REPORT_PROGRESS_H_
#define SEINE_BENCH_REPORT_PROGRESS_H_

#include <chrono>
#include <cstdint>
#include <string>

namespace seine::bench {

// On a terminal one line that is redrawn; elsewhere a line every ten seconds. It says how far a loop has come, and by
// the pace so far how many seconds are left. Silent before two seconds have passed. Not thread-safe.
class Progress {
 public:
  explicit Progress(int64_t total);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void Step(const std::string& what, int64_t steps = 1);

 private:
  using Clock = std::chrono::steady_clock;
  void Draw(const std::string& what);

  const int64_t total_;
  const bool terminal_;
  const Clock::time_point begin_ = Clock::now();
  Clock::time_point next_ = begin_ + std::chrono::seconds(2);
  int64_t done_ = 0;
  bool drawn_ = false;
};

}  // namespace seine::bench

#endif  // SEINE_BENCH_REPORT_PROGRESS_H_
