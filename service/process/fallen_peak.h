// Tells when memory is worth giving back: what is under way has fallen far below its peak, and stays there.
#ifndef SEINE_SERVICE_PROCESS_FALLEN_PEAK_H_
#define SEINE_SERVICE_PROCESS_FALLEN_PEAK_H_

#include <algorithm>
#include <cstdint>

namespace seine {

// Not thread-safe.
class FallenPeak {
 public:
  explicit FallenPeak(int64_t worth_bytes) : worth_(worth_bytes) {}

  // Takes the most bytes that were under way at once since the last call. True: the peak since the last true was higher
  // by `worth_bytes` at least. A load that goes on has about the same peak at each call, and is not told of.
  [[nodiscard]] bool Fell(int64_t most) {
    peak_ = std::max(peak_, most);
    if (peak_ - most < worth_) return false;
    peak_ = most;
    return true;
  }

 private:
  const int64_t worth_;
  int64_t peak_ = 0;
};

}  // namespace seine

#endif  // SEINE_SERVICE_PROCESS_FALLEN_PEAK_H_
