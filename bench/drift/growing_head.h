// A head whose tokens come one after another, as a prefill and a decode bring them.
#ifndef SEINE_BENCH_DRIFT_GROWING_HEAD_H_
#define SEINE_BENCH_DRIFT_GROWING_HEAD_H_

#include <cstdint>

#include "bench/inputs/dataset.h"

namespace seine::bench {

// Tokens in [0, n) as an index holds them: `sink` first and `local` last ones are left out, and a multiple of
// kWindowTokens keys lies between. FitLength(n) is the largest length up to n that leaves out no other token.
struct ZoneShape {
  int64_t sink = 16, local = 64;
  int64_t FitLength(int64_t tokens) const;  // sink + local where no window fits
};

// Not thread-safe.
class GrowingHead {
 public:
  // `whole` with every query that the data have: of a trace those of the positions from info.query_start on, or made-up
  // ones, which are asked at every length. `queries` positions are asked at a length.
  GrowingHead(Head whole, const DatasetInfo& info, const ZoneShape& zone, int64_t queries);

  // All tokens, with the zone of the whole length. Only what says so may look at these.
  const Head& whole() const { return whole_; }

  // What has come so far, and nothing beyond it. Its queries are those of the last positions: [queries, group,
  // head_dim]. Its own_queries are of the prefill, the first length that it grew to, except those that are asked there.
  const Head& so_far() const { return so_far_; }

  // Takes the tokens up to `tokens`, a FitLength that is no less than before.
  void GrowTo(int64_t tokens);

 private:
  void TakeQueries();

  Head whole_, so_far_;
  DatasetInfo info_;
  ZoneShape zone_;
  int64_t queries_;
};

}  // namespace seine::bench

#endif  // SEINE_BENCH_DRIFT_GROWING_HEAD_H_
