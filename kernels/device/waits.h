// How callers wait for a device: the first of them by asking again and again, which loses no time, the others asleep.
// The CUDA runtime's own wait spins: eight callers would take eight cores that the host's work needs.
#ifndef SEINE_KERNELS_DEVICE_WAITS_H_
#define SEINE_KERNELS_DEVICE_WAITS_H_

#include <algorithm>
#include <atomic>
#include <chrono>

namespace seine::cuda {

// Thread-safe.
class Waits {
 public:
  // Longer than a decode step of a layer takes: who spins beyond it waits for something else.
  static constexpr std::chrono::microseconds kSpin{300};
  static int SpinnersOf(int cores) { return std::max(1, cores / 4); }

  explicit Waits(int spinners) : spinners_(spinners) {}

  // Returns what the first of done(&result) to say true gives, or, after a while or where enough callers spin, what
  // sleep() does, which returns when it is over.
  template <typename Result, typename Done, typename Sleep>
  Result For(Done done, Sleep sleep) {
    const bool spins = spinning_.fetch_add(1) < spinners_;
    Result result = {};
    bool over = false;
    for (const auto end = std::chrono::steady_clock::now() + kSpin; spins && !over;) {
      over = done(&result);
      if (std::chrono::steady_clock::now() >= end) break;
    }
    spinning_.fetch_sub(1);
    return over ? result : sleep();
  }

 private:
  const int spinners_;
  std::atomic<int> spinning_{0};
};

}  // namespace seine::cuda

#endif  // SEINE_KERNELS_DEVICE_WAITS_H_
