// A tracker between a store's blocks: its basis in 12 bits an entry.
//
// A store holds two trackers for as long as it lives, and in fp32 they take as much as a basis version and a half of
// keys and values. At rest each column is its largest entry, and 2047ths of it from -2047 to 2047. They are rounded up
// as often as they lie near the upper one (by numbers drawn from the count of updates), for a basis that turns by less
// than half a step a block would else not turn at all. What rounding takes from the columns' orthonormality, some 1e-3,
// two steps of Newton's iteration give back when the tracker wakes:
//
//   U <- U (3 I - U^T U) / 2,  which squares U^T U - I
//
// A basis that no update has touched since it was last packed keeps its bits, so one that does not learn never drifts.
#ifndef SEINE_INDEX_SUBSPACE_PACKED_TRACKER_H_
#define SEINE_INDEX_SUBSPACE_PACKED_TRACKER_H_

#include <cstdint>
#include <vector>

#include "index/config/subspace_config.h"
#include "index/subspace/basis.h"
#include "index/subspace/oja.h"

namespace seine {

class StateReader;  // index/bytes/state_reader.h
class StateWriter;  // index/bytes/state_writer.h

// Not thread-safe. What is unpacked is a function of what was packed, the same on every SIMD target.
class PackedTracker {
 public:
  explicit PackedTracker(const OjaTracker& tracker);

  // Lays down what Wake has returned, once it has learnt.
  void Rest(const OjaTracker& tracker);
  OjaTracker Wake() const { return {basis(), options_, stats_, rows_}; }

  Basis basis() const;  // orthonormal to 1e-5
  const OjaStats& stats() const { return stats_; }
  int waiting() const { return static_cast<int>(rows_.size()) / head_dim_; }  // rows

  // For snapshots.
  void Save(StateWriter* writer) const;
  static PackedTracker Load(const OjaOptions& options, int head_dim, int rank, StateReader* reader);

  // What it holds while so many rows wait for their interval's end. head_dim is even.
  static int64_t Bytes(int head_dim, int rank, int64_t waiting) {
    const int64_t column = head_dim / 2 * 3 + static_cast<int64_t>(sizeof(float));
    return rank * column + waiting * head_dim * static_cast<int64_t>(sizeof(float));
  }

 private:
  PackedTracker(const OjaOptions& options, int head_dim, int rank)
      : options_(options), head_dim_(head_dim), rank_(rank) {}
  void Pack(const Basis& basis);

  OjaOptions options_;
  OjaStats stats_;
  int head_dim_, rank_;
  int64_t version_ = 0;         // the basis's
  std::vector<float> largest_;  // [rank], of a column
  std::vector<uint8_t> codes_;  // [rank][head_dim / 2] pairs of entries, three bytes each
  std::vector<float> rows_;     // [waiting, head_dim]
};

}  // namespace seine

#endif  // SEINE_INDEX_SUBSPACE_PACKED_TRACKER_H_
