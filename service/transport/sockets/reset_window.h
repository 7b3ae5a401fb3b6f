// How the calls of one connection end. It tells a flood of stream resets (CVE-2023-44487) from a client that cancels.
//
// Not thread-safe.
#ifndef SEINE_SERVICE_TRANSPORT_SOCKETS_RESET_WINDOW_H_
#define SEINE_SERVICE_TRANSPORT_SOCKETS_RESET_WINDOW_H_

#include <chrono>
#include <cstdint>

namespace seine {

enum class CallEnd : uint8_t {
  kServed,     // the server has read a message of it, or the client has waited for its status
  kReset,      // the client has ended it before the server has read a message
  kLateReset,  // the same, past the call's deadline or near it: a client does so where a server is slow
};

class ResetWindow {
 public:
  using Time = std::chrono::steady_clock::time_point;
  static constexpr auto kTime = std::chrono::seconds(1);
  static constexpr int64_t kMostResets = 512;       // twice the streams that a connection may have open
  static constexpr int64_t kMostLateResets = 4096;  // each counts an eighth
  static constexpr int kMostHalvings = 4;

  // Counts a call that ended at `now`, which never goes back. True: within a second more than kMostResets were reset,
  // halved so many times, and they are more than half of all.
  [[nodiscard]] bool Count(CallEnd end, Time now, int halvings = 0) {
    if (now - began_ >= kTime) {
      began_ = now;
      served_ = resets_ = weight_ = 0;
    }
    (end == CallEnd::kServed ? served_ : resets_) += 1;
    if (end != CallEnd::kServed) weight_ += end == CallEnd::kReset ? kLateWeight : 1;
    return weight_ > kMostLateResets >> halvings && resets_ > served_;
  }

 private:
  static constexpr int64_t kLateWeight = kMostLateResets / kMostResets;  // of one that is not late
  Time began_{};
  int64_t served_ = 0, resets_ = 0, weight_ = 0;
};

}  // namespace seine

#endif  // SEINE_SERVICE_TRANSPORT_SOCKETS_RESET_WINDOW_H_
