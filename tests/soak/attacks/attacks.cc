#include "tests/soak/attacks/attacks.h"

#include <cstdio>

#include "tests/soak/attacks/made_attacks.h"

namespace seine::soak {

void Tally::Break(const std::string& what) {
  printf("break: %s\n", what.c_str());
  fflush(stdout);
}

void Tally::Print() const {
  printf("cases %lld faults %lld\n", static_cast<long long>(cases_), static_cast<long long>(faults_));
  fflush(stdout);
}

// Stated numbers are about a tenth of what two cores make. Those of attacks that make all they make at once are what
// they make.
const std::vector<Attack>& Attacks() {
  static const auto* const attacks = new std::vector<Attack>{
      {.name = "busy-cores",
       .what = "no attack: a program that computes on every core, for comparison",
       .run = &BusyCores,
       .stated = {1, 0}},
      {.name = "mutation",
       .what = "right requests of every RPC with some bytes changed",
       .run = &Mutation,
       .stated = {2000, 2000}},
      {.name = "extremes",
       .what = "empty, doubled, halved, deep and padded messages",
       .run = &Extremes,
       .stated = {500, 500}},
      {.name = "cancels",
       .what = "10,000 calls and streams cancelled or late at any point; all bytes carry marks",
       .run = &Cancels,
       .stated = {10'000, 10'000},
       .leaves_nothing = true,
       .grows_mib = 64},
      {.name = "resets",
       .what = "streams opened and reset at once, some 20,000 a second",
       .run = &Resets,
       .stated = {30'000, 30'000},
       .leaves_nothing = true},
      {.name = "reset-flood",
       .what = "the same, as fast as the server takes them: what a front is for",
       .run = &ResetFlood,
       .stated = {30'000, 30'000},
       .starves = true,
       .leaves_nothing = true},
      {.name = "descriptors",
       .what = "900 connections again and again, where 256 files may be open",
       .run = &Descriptors,
       .stated = {1800, 1800},
       .descriptors = 256,
       .refuses_connections = true,
       .leaves_nothing = true,
       .grows_mib = 64},
      {.name = "descriptors-polling",
       .what = "the same, where the server polls",
       .run = &Descriptors,
       .stated = {1800, 1800},
       .flags = {"--polling"},
       .descriptors = 256,
       .refuses_connections = true,
       .leaves_nothing = true,
       .grows_mib = 64},
      {.name = "descriptors-least",
       .what = "the same, where 192 files may be open, the fewest that seined takes",
       .run = &Descriptors,
       .stated = {1800, 1800},
       .descriptors = 192,
       .refuses_connections = true,
       .leaves_nothing = true,
       .grows_mib = 64},
      {.name = "idle-connections",
       .what = "2,000 connections that say nothing",
       .run = &IdleConnections,
       .stated = {2000, 2000},
       .leaves_nothing = true,
       .grows_mib = 64},
      {.name = "churn",
       .what = "connections that come, say nonsense and go",
       .run = &Churn,
       .stated = {1000, 1000},
       .leaves_nothing = true,
       .grows_mib = 64},
      {.name = "unread",
       .what = "24 Decode streams whose client hangs",
       .run = &Unread,
       .stated = {240, 240},
       .stopped = true},
      {.name = "unread-answers",
       .what = "40 answers of 51 MB that nobody reads",
       .run = &UnreadAnswers,
       .stated = {1, 40},
       .stopped = true},
      {.name = "slow-readers",
       .what = "200 Decode streams with answers of 128 KB, read by the kilobyte",
       .run = &SlowReaders,
       .stated = {200, 200},
       .leaves_nothing = true,
       .grows_mib = 64},
      {.name = "bomb", .what = "compressed messages that inflate a thousand times", .run = &Bomb, .stated = {50, 50}},
      {.name = "queue", .what = "60 appends of 16 MiB at once", .run = &Queue, .stated = {100, 100}},
      {.name = "slow-senders",
       .what = "400 messages of 56 MB that come in part",
       .run = &SlowSenders,
       .stated = {400, 400}},
      {.name = "geometry",
       .what = "indexes of 4,096 layers of 1,024 heads, and empty sequences",
       .run = &Geometry,
       .stated = {1000, 0}},
      {.name = "readers", .what = "12 exact readers of a layer and its writer", .run = &Readers, .stated = {100, 0}},
      {.name = "long-work", .what = "long calls that are late or cancelled", .run = &LongWork, .stated = {100, 0}},
      {.name = "idle-streams", .what = "200 streams that say nothing", .run = &IdleStreams, .stated = {200, 200}},
      {.name = "idle-streams-polling",
       .what = "the same, where the server polls",
       .run = &IdleStreams,
       .stated = {200, 200},
       .flags = {"--polling"}},
      {.name = "reflection", .what = "800 reflection streams", .run = &Reflection, .stated = {800, 800}},
  };
  return *attacks;
}

}  // namespace seine::soak
