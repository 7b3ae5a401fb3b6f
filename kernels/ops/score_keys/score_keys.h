// What eviction asks of a backend: sums of a head's keys, of which anchors are made, a score for every key, and the
// places of the largest.
#ifndef SEINE_KERNELS_OPS_SCORE_KEYS_SCORE_KEYS_H_
#define SEINE_KERNELS_OPS_SCORE_KEYS_SCORE_KEYS_H_

#include <cstdint>
#include <vector>

#include "kernels/math.h"
#include "kernels/types.h"

namespace seine {

// Score of a key k against an anchor a. Higher means keep. Finishing formulas and sources: math.h.
enum class KeyScore : uint8_t {
  kNegNorm,    // -|k|
  kDot,        // <k, a>
  kNegCosine,  // -<k, a> / |k|; 0 for a zero key. The caller gives a of norm 1, or of any norm where order alone counts
  kL2,         // |k - a|_2
  kL1,         // |k - a|_1
  kLinf,       // |k - a|_inf
  kUnitL2,     // |k / |k| - a|_2 by its squares; |a| for a zero key
};

// What a kind sums of a key's coordinates x and its anchor's a: x^2; and x a, or a distance of x and a.
SEINE_HD constexpr bool TakesSquares(KeyScore kind) {
  return kind == KeyScore::kNegNorm || kind == KeyScore::kNegCosine || kind == KeyScore::kUnitL2;
}
SEINE_HD constexpr bool TakesAnchor(KeyScore kind) { return kind != KeyScore::kNegNorm; }
SEINE_HD constexpr bool IsDistance(KeyScore kind) {
  return kind == KeyScore::kL2 || kind == KeyScore::kL1 || kind == KeyScore::kLinf;
}

// The score, from these sums: of distances their sum of squares, of sizes, or the largest size.
SEINE_HD inline float FinishScore(KeyScore kind, float main, float squares, float anchor_squares) {
  if (kind == KeyScore::kNegNorm) return 0.0f - sqrtf(squares);
  if (kind == KeyScore::kNegCosine) return NegCosine(main, squares);
  if (kind == KeyScore::kL2) return RootOfSquare(main);
  if (kind == KeyScore::kUnitL2) return UnitDistance(main, squares, anchor_squares);
  return main;
}

// Windows that part a head's keys: runs of places one after another, none of them empty, each with a sum or an anchor
// of its own. Which places a window has is the caller's to say: where tokens were evicted, windows of as many positions
// hold as many keys as are left of each.
struct KeyWindows {
  const int32_t* begins =
      nullptr;        // [count] the first place of each, ascending from 0; nullptr: one window of all keys
  int64_t count = 1;  // 0: there are no keys
  // Window `w` holds keys [begin(w), end(w, keys)) of `keys` in all.
  int64_t begin(int64_t w) const { return begins == nullptr ? 0 : begins[w]; }
  int64_t end(int64_t w, int64_t keys) const { return w + 1 < count ? begins[w + 1] : keys; }
};

// Sums of keys are fp64, by groups of so many keys by their places in a window: a group's keys are added one after
// another to nothing, then the groups' sums, in order. So a sum's bits depend neither on how its keys came nor on who
// adds them, and a device has groups to add side by side.
inline constexpr int kSumGroup = 256;

// One head's sums, a window each.
struct SumTask {
  ChunkedRows keys = {};  // [count, head_dim], head_dim a multiple of 16
  int64_t count = 0;
  bool unit = false;  // of keys divided by their norms, as k * (1 / |k|) in fp32; a zero key adds nothing
  KeyWindows windows = {};
  double* sums = nullptr;  // [windows.count, head_dim], overwritten
};

// One head's keys. Scores are finite for keys whose squared norm is (an overflowing distance becomes the largest
// float).
struct ScoreTask {
  ChunkedRows keys = {};  // [count, head_dim], head_dim a multiple of 16
  int64_t count = 0;
  KeyScore kind = KeyScore::kNegNorm;
  const float* anchors = nullptr;  // [windows.count, head_dim]; not read by kNegNorm
  KeyWindows windows = {};         // keys of a window share an anchor
  float* out = nullptr;            // [count]
};

// The places of the `kept` largest of scores[count], all finite: ascending, ties to the lowest place. All where there
// are fewer.
struct SelectTask {
  const float* scores = nullptr;
  int64_t count = 0, kept = 0;
  std::vector<uint32_t>* places = nullptr;  // overwritten
};

}  // namespace seine

#endif  // SEINE_KERNELS_OPS_SCORE_KEYS_SCORE_KEYS_H_
