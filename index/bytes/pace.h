// Snapshots make way for decode steps. Beside steps their threads get the lowest priority, so that a step need not wait
// for them; they work in pieces that are short beside a step, and pause after each for some times as long as it took.
// Without steps they work as any thread. Restores do so in another way: piece_runner.h.
#ifndef SEINE_INDEX_BYTES_PACE_H_
#define SEINE_INDEX_BYTES_PACE_H_

#include <cstdint>
#include <functional>

#include "absl/status/status.h"

namespace seine {

// Notes that a call appends or asks, in any index of the process. It reads a coarse clock, and writes at its ticks.
// Thread-safe.
void NoteStep();
// Whether one has come within the last 50 ms. Thread-safe.
bool BesideSteps();

// Makes the thread one of its own for as long as the scope lasts: a pace may lower its priority, which cannot be raised
// again without a privilege. The thread must end with the scope.
class OwnThread {
 public:
  OwnThread();
  ~OwnThread();
  OwnThread(const OwnThread&) = delete;
  OwnThread& operator=(const OwnThread&) = delete;
};

// Runs `work` on a thread of its own, of that name (at most 15 bytes), and waits for it. The caller's stop token and
// yielder are that thread's too, and what it throws is thrown here. `work` must hold no lock that a step waits for.
// RESOURCE_EXHAUSTED: there is no thread.
absl::Status RunOnOwnThread(const char* name, const std::function<absl::Status()>& work);

inline constexpr int kSnapshotPauses = 4, kRestorePauses = 1;

// The pace of one thread's work, from here on.
class Pace {
 public:
  // Beside steps the work takes at most one part in 1 + `pauses` of a core.
  explicit Pace(int pauses);
  // Ends a piece. It sleeps where steps have come within the last milliseconds. Returns the processor's time since the
  // last pause, in ns.
  int64_t Pause();

 private:
  const int pauses_;
  int64_t resumed_;  // in the thread's own time, ns
};

}  // namespace seine

#endif  // SEINE_INDEX_BYTES_PACE_H_
