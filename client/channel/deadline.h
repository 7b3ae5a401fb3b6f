// Times that callers give, as deadlines take them.
#ifndef SEINE_CLIENT_CHANNEL_DEADLINE_H_
#define SEINE_CLIENT_CHANNEL_DEADLINE_H_

#include "absl/time/time.h"

namespace seine::client {

// Clocks count nanoseconds in 64 bits, so that 293 years from now have no name: a longer time than this has no end.
inline constexpr absl::Duration kLongestWait = absl::Hours(24 * 365 * 100);

inline absl::Duration WithoutEndIfHuge(absl::Duration wait) {
  return wait > kLongestWait ? absl::InfiniteDuration() : wait;
}

}  // namespace seine::client

#endif  // SEINE_CLIENT_CHANNEL_DEADLINE_H_
