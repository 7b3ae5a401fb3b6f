// File descriptors of the process: how many it may have, and whether one more connection leaves enough for the rest.
// gRPC 1.51 aborts where it finds none (its poll engine makes an event descriptor for each thread that waits) or never
// accepts again.
#ifndef SEINE_SERVICE_TRANSPORT_SOCKETS_DESCRIPTORS_H_
#define SEINE_SERVICE_TRANSPORT_SOCKETS_DESCRIPTORS_H_

#include <chrono>

#include "absl/status/status.h"

namespace seine {

// Raises RLIMIT_NOFILE to what the system gives. FAILED_PRECONDITION naming both numbers: it is too low to serve with.
absl::Status RaiseDescriptorLimit();

// Not thread-safe.
class DescriptorLimit {
 public:
  static constexpr int kLeast = 192;   // with fewer no server starts
  static constexpr int kReserve = 64;  // never given to connections: threads, profiles, the log
  static constexpr int kMostConnections =
      16384;  // descriptors of theirs, however many there are: each costs memory, too

  DescriptorLimit();  // of the process as it is now
  explicit DescriptorLimit(int most) : most_(most) {}

  // Whether the connection that has just been made, and takes `each` descriptors, may stay. Counts the open descriptors
  // where that can matter, and then at most every 10 ms; until the next count it refuses.
  bool Admits(int each);
  int most() const { return most_; }  // descriptors that may be open

 private:
  int most_;
  int upper_bound_ = 1 << 30;  // of those that are open
  bool full_ = false;          // at the last count
  std::chrono::steady_clock::time_point counted_;
};

int OpenDescriptors();  // of this process

}  // namespace seine

#endif  // SEINE_SERVICE_TRANSPORT_SOCKETS_DESCRIPTORS_H_
