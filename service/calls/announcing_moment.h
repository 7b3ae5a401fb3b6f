// When a step's answer is near enough to say so: early enough that the client's core, which sleeps deeply after a few
// hundred microseconds, is awake when the answer comes, and late enough that the client need not spin for long.
#ifndef SEINE_SERVICE_CALLS_ANNOUNCING_MOMENT_H_
#define SEINE_SERVICE_CALLS_ANNOUNCING_MOMENT_H_

#include <chrono>

namespace seine {

// Foresees when one step's answer is near, from the tasks that its thread has done: that moment can come only before a
// task begins. Not thread-safe.
class AnnouncingMoment {
 public:
  using Time = std::chrono::steady_clock::time_point;
  using Duration = std::chrono::steady_clock::duration;
  static constexpr Duration kWorthwhile = std::chrono::microseconds(250);  // a step in which a core falls asleep deeply
  static constexpr Duration kWakeUp = std::chrono::microseconds(100);      // of such a core, and a small message's way
  static constexpr Duration kLongest = std::chrono::microseconds(400);     // that a client should spin

  // A task is about to begin on this thread, `left` of those that all threads share are not begun. True once: this is
  // the moment, for before the next task it would be too late.
  bool IsDue(Time now, int left) {
    const Duration task = now - last_;  // of this thread
    last_ = now;
    if (left >= first_left_) {  // the first, or of another batch
      first_ = now;
      first_left_ = left;
      return false;
    }
    const Duration spent = now - first_, ahead = spent / (first_left_ - left) * left;
    if (come_ || spent + ahead < kWorthwhile || ahead > kLongest || ahead > task + kWakeUp) return false;
    return come_ = true;
  }

 private:
  Time first_, last_;  // when this thread's first and last task began
  int first_left_ = 0;
  bool come_ = false;
};

}  // namespace seine

#endif  // SEINE_SERVICE_CALLS_ANNOUNCING_MOMENT_H_
