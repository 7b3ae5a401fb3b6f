// Calls under way, and their end.
#ifndef SEINE_SERVICE_UNDER_WAY_CALLS_UNDER_WAY_H_
#define SEINE_SERVICE_UNDER_WAY_CALLS_UNDER_WAY_H_

#include <cstdint>
#include <mutex>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "service/fields/error.h"

namespace seine {

// How many calls are under way, so that they are not too many; a server that ends takes no more. Thread-safe.
class CallsUnderWay {
 public:
  static constexpr int64_t kMost = 16'384;  // each costs some kilobytes before its first byte has come

  // A call begins. Not OK: it is to be refused, and Leave not called.
  [[nodiscard]] absl::Status Enter() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (closed_) return absl::UnavailableError("the server is shutting down");
    if (count_ >= kMost) return Overloaded("TOO_MANY_CALLS", "too many calls are open", absl::Milliseconds(100));
    ++count_;
    return absl::OkStatus();
  }
  void Leave() {
    const std::lock_guard<std::mutex> lock(mutex_);
    --count_;
  }
  void Close() {
    const std::lock_guard<std::mutex> lock(mutex_);
    closed_ = true;
  }
  bool closed() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return closed_;
  }

 private:
  mutable std::mutex mutex_;
  int64_t count_ = 0;    // guarded by mutex_
  bool closed_ = false;  // guarded by mutex_
};

}  // namespace seine

#endif  // SEINE_SERVICE_UNDER_WAY_CALLS_UNDER_WAY_H_
