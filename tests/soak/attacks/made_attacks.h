// The attacks themselves; attacks.cc lists them.
#ifndef SEINE_TESTS_SOAK_ATTACKS_MADE_ATTACKS_H_
#define SEINE_TESTS_SOAK_ATTACKS_MADE_ATTACKS_H_

#include "tests/soak/attacks/attacks.h"

namespace seine::soak {

// messages.cc
void Mutation(const Target& target, Tally& tally);
void Extremes(const Target& target, Tally& tally);
void Bomb(const Target& target, Tally& tally);
void Queue(const Target& target, Tally& tally);
// cancels.cc
void Cancels(const Target& target, Tally& tally);
// connections.cc
void Pings(const Target& target, Tally& tally);
void ReadPings(const Target& target, Tally& tally);
void Settings(const Target& target, Tally& tally);
void ControlFlood(const Target& target, Tally& tally);
void Resets(const Target& target, Tally& tally);
void ResetFlood(const Target& target, Tally& tally);
void Descriptors(const Target& target, Tally& tally);
void IdleConnections(const Target& target, Tally& tally);
void Churn(const Target& target, Tally& tally);
void SlowSenders(const Target& target, Tally& tally);
void IdleStreams(const Target& target, Tally& tally);
void Reflection(const Target& target, Tally& tally);
// http.cc
void SlowHttp(const Target& target, Tally& tally);
// unread.cc
void Unread(const Target& target, Tally& tally);
void UnreadAnswers(const Target& target, Tally& tally);
void SlowReaders(const Target& target, Tally& tally);
// work.cc
void Geometry(const Target& target, Tally& tally);
void Readers(const Target& target, Tally& tally);
void LongWork(const Target& target, Tally& tally);
void BusyCores(const Target& target, Tally& tally);

}  // namespace seine::soak

#endif  // SEINE_TESTS_SOAK_ATTACKS_MADE_ATTACKS_H_
