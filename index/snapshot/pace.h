// Snapshots and restores make way for decode steps: beside steps they work in pieces that are short beside a step, and
// pause after each for some times as long as it took. Without steps they do not pause.
#ifndef SEINE_INDEX_SNAPSHOT_PACE_H_
#define SEINE_INDEX_SNAPSHOT_PACE_H_

#include <cstdint>

namespace seine {

// Notes that a call appends or asks, in any index of the process. It reads a coarse clock, and writes at its ticks.
// Thread-safe.
void NoteStep();

// The pace of one thread's work, from here on.
class Pace {
 public:
  // Beside steps the work takes at most one part in 1 + kPauses of a core.
  static constexpr int kPauses = 4;

  Pace();
  // Ends a piece. It sleeps where steps have come within the last milliseconds.
  void Pause();

 private:
  int64_t resumed_;  // in the thread's own time, ns
};

}  // namespace seine

#endif  // SEINE_INDEX_SNAPSHOT_PACE_H_
