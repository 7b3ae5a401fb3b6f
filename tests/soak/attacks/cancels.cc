#include "tests/soak/attacks/canceller.h"
#include "tests/soak/attacks/helpers.h"
#include "tests/soak/attacks/made_attacks.h"

namespace seine::soak {

void Cancels(const Target& target, Tally& tally) {
  InParallel(6, [&](int thread) {
    Canceller canceller(target.endpoint, thread, target.seed, tally);
    for (;;) canceller.Round();
  });
}

}  // namespace seine::soak
