// Sums of one head's keys, and the means that anchors and centroids are made of. Where sums are kept as tokens are
// appended, scoring needs a single pass over the keys. Sums are fp64 in an order that only the tokens held tell
// (kernels/ops/score_keys/score_keys.h), so any split of the same tokens into appends gives the same bits as one pass
// over all of them.
#ifndef SEINE_INDEX_SCORERS_KEY_SUMS_H_
#define SEINE_INDEX_SCORERS_KEY_SUMS_H_

#include <cstdint>
#include <vector>

#include "kernels/ops/score_keys/score_keys.h"
#include "kernels/types.h"

namespace seine {

class StateReader;  // index/bytes/state_reader.h
class StateWriter;  // index/bytes/state_writer.h

// Which sums a scorer reads.
struct SumsWanted {
  bool unit = false;  // of keys divided by their norms
  bool raw = false;
  int window = 0;  // > 0: raw sums of the tokens at each so many positions, windows with none left out
  bool any() const { return unit || raw || window > 0; }
  bool operator==(const SumsWanted&) const = default;
};

// Means in fp32, zeros of no keys; empty where they are not wanted.
struct KeyMeans {
  std::vector<float> unit, raw;      // [head_dim]
  std::vector<float> windows;        // [windows, head_dim]
  std::vector<int32_t> begins = {};  // [windows] the first place of each
};

// One of the sums wanted: as SumTask takes it, and where its means go.
struct SumKind {
  bool unit = false;
  int64_t window = 0;
  std::vector<float> KeyMeans::*means = nullptr;
};
std::vector<SumKind> KindsOf(const SumsWanted& wanted);

// Returns the first place of each window of `window` positions that has tokens. These are at ascending `positions`
// [count], or at 0, 1, ... where that is nullptr.
std::vector<int32_t> WindowBegins(const int32_t* positions, int64_t count, int64_t window);

// What sums of `count` keys, [windows.count, head_dim], are as means.
std::vector<float> MeansOfSums(const double* sums, const KeyWindows& windows, int64_t count, int head_dim);

// Running sums. Not thread-safe.
class KeySums {
 public:
  KeySums(const SumsWanted& wanted, int head_dim);

  // Appends rows, O(head_dim) a row and wanted sum. `positions` [count] go on ascending; nullptr: positions are places.
  void Add(const ConstRows& rows, int64_t count, const int32_t* positions = nullptr);

  int64_t count() const { return count_; }
  KeyMeans Means() const;

  // For snapshots. Load: into new sums, of `count` keys.
  void Save(StateWriter* writer) const;
  void Load(int64_t count, StateReader* reader);

 private:
  struct Running {
    SumKind kind;
    std::vector<double> sums;     // [windows, head_dim], of whole groups
    std::vector<double> open;     // [head_dim], of the last window's last group
    std::vector<int32_t> begins;  // [windows], where there are windows of positions
    int64_t last = -1;            // the last window is that of positions [last, last + 1) * kind.window
  };
  void LoadWindows(Running* r, StateReader* reader) const;
  void AddRun(const ConstRows& rows, int64_t count, int64_t begin, Running* r) const;

  int head_dim_;
  int64_t count_ = 0;
  std::vector<Running> running_;
};

}  // namespace seine

#endif  // SEINE_INDEX_SCORERS_KEY_SUMS_H_
