// Where the tokens of a sharded sequence lie. Positions are cut into runs of equal length, and runs go round the
// shards: with 2 shards run 0 is the first run of shard 0, run 1 the first of shard 1, run 2 the second of shard 0. A
// shard counts what it holds from 0 on: its rows.
#ifndef SEINE_CLIENT_SHARDED_STRIPE_MAP_H_
#define SEINE_CLIENT_SHARDED_STRIPE_MAP_H_

#include <algorithm>
#include <cstdint>

#include "absl/types/span.h"

namespace seine::client {

// A value; every function is a few integer operations.
class StripeMap {
 public:
  // At least one shard; `run` positions, at least one.
  StripeMap(int shards, int64_t run) : shards_(shards), run_(run) {}

  int shards() const { return shards_; }
  int64_t run() const { return run_; }
  int ShardOf(int64_t position) const { return static_cast<int>(position / run_ % shards_); }
  int64_t RowOf(int64_t position) const { return position / (run_ * shards_) * run_ + position % run_; }
  int64_t PositionOf(int shard, int64_t row) const { return (row / run_ * shards_ + shard) * run_ + row % run_; }
  // How many positions before this one a shard holds.
  int64_t RowsBefore(int shard, int64_t position) const {
    const int64_t round = run_ * shards_;
    return position / round * run_ + std::clamp<int64_t>(position % round - shard * run_, 0, run_);
  }
  // Where the run of this position ends.
  int64_t RunEnd(int64_t position) const { return (position / run_ + 1) * run_; }
  // The length of the beginning that shards of so many rows hold together. [shards]
  int64_t HeldBy(absl::Span<const int64_t> rows) const {
    int64_t held = PositionOf(0, rows[0]);
    for (int s = 1; s < shards_; ++s) held = std::min(held, PositionOf(s, rows[s]));
    return held;
  }

 private:
  int shards_;
  int64_t run_;
};

// The zones of the whole sequence, as one node would have them: sink | retrieval zone | local and what is not encoded.
struct StripeZones {
  int64_t sink = 128, local = 512, update_buffer = 512, dense_threshold = 2048;

  // Where the zone of n tokens ends; `sink`: there is none, and all is dense. The rule is that of an index (index.h).
  int64_t ZoneEnd(int64_t n) const {
    const int64_t beyond = n - sink - local;
    if (n < dense_threshold || beyond <= 0) return sink;
    return sink + beyond / update_buffer * update_buffer;
  }
};

// What each shard is asked for where top_k tokens of all are wanted: its share and half as much again, for shards do
// not hold equally many of the best.
inline int ShardTopK(int top_k, int shards) { return std::min(top_k, (3 * top_k + 2 * shards - 1) / (2 * shards) + 8); }

}  // namespace seine::client

#endif  // SEINE_CLIENT_SHARDED_STRIPE_MAP_H_
