// A client that holds a same-host channel and sends heavy steps through it until it is killed.
#ifndef SEINE_TESTS_SOAK_ATTACKS_CHANNEL_HOLDER_H_
#define SEINE_TESTS_SOAK_ATTACKS_CHANNEL_HOLDER_H_

#include <string>

namespace seine::soak {

inline constexpr char kHoldChannel[] = "hold-channel";  // its name, for --attack
inline constexpr char kHeldIndex[] = "attack",
                      kHeldId[] = "held-open";  // the sequence that it asks, which must be there

// Prints "open" when its first step is on its way. Returns 1, with a text, where it gets no channel or no answer.
int HoldChannel(const std::string& address);

}  // namespace seine::soak

#endif  // SEINE_TESTS_SOAK_ATTACKS_CHANNEL_HOLDER_H_
