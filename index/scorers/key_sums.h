// Running sums of one head's keys, kept as tokens are appended: what anchors and centroids are made of, so that scoring
// needs a single pass over the keys. Sums are fp64 and run in the order of the tokens, so any split of the same tokens
// into appends gives the same bits as one pass over all of them.
#ifndef SEINE_INDEX_SCORERS_KEY_SUMS_H_
#define SEINE_INDEX_SCORERS_KEY_SUMS_H_

#include <cstdint>
#include <vector>

#include "kernels/types.h"

namespace seine {

// Which sums a scorer reads.
struct SumsWanted {
  bool unit = false;  // of keys divided by their norms
  bool raw = false;
  int window = 0;  // > 0: raw sums of each run of so many tokens, by their places among the tokens held
  bool any() const { return unit || raw || window > 0; }
  bool operator==(const SumsWanted&) const = default;
};

// Not thread-safe.
class KeySums {
 public:
  KeySums(const SumsWanted& wanted, int head_dim);

  // Appends rows, O(head_dim) a row and wanted sum.
  void Add(const ConstRows& rows, int64_t count);

  int64_t count() const { return count_; }
  // Means in fp32, [head_dim]; zeros where nothing was added.
  std::vector<float> UnitMean() const { return Mean(unit_.data(), count_); }
  std::vector<float> RawMean() const { return Mean(raw_.data(), count_); }
  std::vector<float> WindowMean(int64_t window) const;

 private:
  std::vector<float> Mean(const double* sums, int64_t count) const;

  SumsWanted wanted_;
  int head_dim_;
  int64_t count_ = 0;
  std::vector<double> unit_, raw_;  // [head_dim], or empty
  std::vector<double> windows_;     // [ceil(count / window), head_dim]
};

}  // namespace seine

#endif  // SEINE_INDEX_SCORERS_KEY_SUMS_H_
