// A restore makes way for decode steps. Without steps its pieces run on the caller's thread. Beside steps another
// thread runs them, which the system gives a processor only where no other thread wants it: what wakes preempts it at
// once. It pauses after each piece too, for a new page may hold a core up for milliseconds
// (docs/decisions/service/0084-snapshots-pause-beside-steps.md).
#ifndef SEINE_INDEX_BYTES_PIECE_RUNNER_H_
#define SEINE_INDEX_BYTES_PIECE_RUNNER_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/priority.h"

namespace seine {

// Not thread-safe.
class PieceRunner {
 public:
  // `beside_steps` is the other thread's priority. kGaps becomes kLowest, for good, once some pieces have taken so long
  // that other programs must be filling the processors: a thread cannot leave kGaps, but another can go on.
  // `make_short`, which may be absent, is called once, between two pieces, where some beside steps took so long that
  // these must feel each.
  explicit PieceRunner(Priority beside_steps, std::function<void()> make_short = {});
  ~PieceRunner();

  // One piece, some ten microseconds of work; whether more are to come.
  using Piece = std::function<absl::StatusOr<bool>()>;
  // Runs piece() again and again, and waits for the last. Returns the first error, and throws what a piece throws; no
  // piece comes after that. The caller's stop token and yielder are the other thread's too. RESOURCE_EXHAUSTED: there
  // is no thread.
  absl::Status Run(const Piece& piece);

 private:
  class Helper;
  // Ends a piece; whether these begin to take too long.
  bool Starves();
  // Notes a piece beside steps, in ns of a processor.
  void NotePiece(int64_t took);

  Priority beside_steps_;
  std::function<void()> make_short_;  // empty once called
  int long_pieces_ = 0;
  std::unique_ptr<Helper> helper_;
  int64_t pieces_ = 0;  // in the gaps, of the present look at how long they take
  std::chrono::steady_clock::time_point began_;
};

}  // namespace seine

#endif  // SEINE_INDEX_BYTES_PIECE_RUNNER_H_
