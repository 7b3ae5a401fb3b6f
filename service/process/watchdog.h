// Notices a server that no longer answers, such as one whose threads wait for each other: a call of its own, again and
// again, must come back.
#ifndef SEINE_SERVICE_PROCESS_WATCHDOG_H_
#define SEINE_SERVICE_PROCESS_WATCHDOG_H_

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

#include "absl/time/time.h"

namespace seine {

class Watchdog {
 public:
  struct Watch {
    absl::Duration limit;              // without an answer, above zero
    std::function<bool()> answers;     // makes the call; may block for ever; false: it failed
    std::function<void()> on_answer;   // after each that came back
    std::function<void()> on_silence;  // once, from a thread of its own, when none came back for `limit`
  };
  explicit Watchdog(Watch watch);
  // Ends both threads; waits for a call under way, which the caller must let come back.
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

 private:
  // Time is counted in ticks that this process was awake for: what was stopped or suspended was not silent.
  static constexpr int kTicks = 16;  // in `limit`
  void Ask();
  void Guard();
  bool WaitOrEnd();  // a tick; true: the end

  const Watch watch_;
  const absl::Duration tick_;
  std::atomic<int> silent_ticks_{0};
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ended_ = false;  // guarded by mutex_
  std::thread asks_, guards_;
};

}  // namespace seine

#endif  // SEINE_SERVICE_PROCESS_WATCHDOG_H_
