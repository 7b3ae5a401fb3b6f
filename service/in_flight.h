// Bytes of requests and answers that are under way: received and not yet worked on, being worked on, or answered and
// not yet read by the client. They are admitted before they are kept, like everything else.
//
// Thread-safe.
#ifndef SEINE_SERVICE_IN_FLIGHT_H_
#define SEINE_SERVICE_IN_FLIGHT_H_

#include <atomic>
#include <cstdint>

namespace seine {

class InFlight {
 public:
  static constexpr int64_t kSmall = 256 << 10;  // a quarter of the limit is for messages up to this size alone

  explicit InFlight(int64_t limit_bytes) : limit_(limit_bytes) {}
  InFlight(const InFlight&) = delete;
  InFlight& operator=(const InFlight&) = delete;

  [[nodiscard]] bool TryTake(int64_t bytes) {
    const int64_t most = bytes <= kSmall ? limit_ : limit_ - limit_ / 4;
    int64_t used = used_.load(std::memory_order_relaxed);
    do {
      if (bytes > most - used) return false;
    } while (!used_.compare_exchange_weak(used, used + bytes, std::memory_order_relaxed));
    NotePeak(used + bytes);
    return true;
  }
  // Whatever the limit: the answer to what has been changed already.
  void Take(int64_t bytes) { NotePeak(used_.fetch_add(bytes, std::memory_order_relaxed) + bytes); }
  void Release(int64_t bytes) { used_.fetch_sub(bytes, std::memory_order_relaxed); }

  int64_t limit_bytes() const { return limit_; }
  int64_t used_bytes() const { return used_.load(std::memory_order_relaxed); }
  // The most that was taken at once since the last call.
  int64_t TakePeak() { return peak_.exchange(used_bytes(), std::memory_order_relaxed); }

 private:
  void NotePeak(int64_t used) {
    int64_t peak = peak_.load(std::memory_order_relaxed);
    while (used > peak && !peak_.compare_exchange_weak(peak, used, std::memory_order_relaxed)) {
    }
  }
  const int64_t limit_;
  std::atomic<int64_t> used_{0}, peak_{0};
};

// A call's share; given back at its end. Not thread-safe.
class InFlightShare {
 public:
  explicit InFlightShare(InFlight& of) : of_(of) {}
  InFlightShare(const InFlightShare&) = delete;
  InFlightShare& operator=(const InFlightShare&) = delete;
  ~InFlightShare() { of_.Release(bytes_); }

  // Holds `bytes` in place of what it held. False: there is no room, and it holds what it held.
  [[nodiscard]] bool TryHold(int64_t bytes) {
    if (bytes > bytes_ && !of_.TryTake(bytes - bytes_)) return false;
    if (bytes < bytes_) of_.Release(bytes_ - bytes);
    bytes_ = bytes;
    return true;
  }
  void Hold(int64_t bytes) {
    if (TryHold(bytes)) return;
    of_.Take(bytes - bytes_);
    bytes_ = bytes;
  }

 private:
  InFlight& of_;
  int64_t bytes_ = 0;
};

}  // namespace seine

#endif  // SEINE_SERVICE_IN_FLIGHT_H_
