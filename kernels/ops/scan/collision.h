// The paper's coarse score: tiers of sign centroids by collision (ParisKV, section 4.2; cuts and weights of its
// appendix).
#ifndef SEINE_KERNELS_OPS_SCAN_COLLISION_H_
#define SEINE_KERNELS_OPS_SCAN_COLLISION_H_

#include <cmath>
#include <cstdint>
#include <vector>

#include "kernels/math.h"

namespace seine {

struct SearchTask;  // ops/query/search.h

inline constexpr int kCollisionTiers = 6;
// Score of a key that collides with the query in one subvector of the last tier. Those below it, of 0, have been told
// apart by nothing; they are no candidates unless every key is one.
inline constexpr float kLeastCollision = 1;
// Keys that rank before tier t's end.
SEINE_HD inline uint64_t CollisionLimit(int64_t num_keys, double fraction, int tier) {
  constexpr double kCuts[kCollisionTiers] = {.05, .15, .30, .50, .75, 1.0};
  return static_cast<uint64_t>(ceil(static_cast<double>(num_keys) * fraction * kCuts[tier]));
}
// Ascending order of these is descending order of the scores, then ascending id.
SEINE_HD inline uint64_t CollisionRank(float score, uint32_t id) {
  return static_cast<uint64_t>(~OrderedBits(score)) << 32 | id;
}

// Tier weights [table_bytes][256] of a query. Per subvector the 256 sign centroids are ranked by <q~_b, c> (ties:
// lowest id) and walked with the zone's counts until fraction * num_keys keys are covered; a centroid is in tier t iff
// fewer than ceil(num_keys * fraction * cut_t) keys rank before it, cuts 5, 15, 30, 50, 75, 100 %, weights 6..1; else
// it weighs 0. transformed: rotated query [head_dim]; counts: [head_dim / 8][256]; table_bytes >= head_dim / 8, the
// rest weigh 0. counts must be of the num_keys keys that are searched, and of no others (SearchedCounts).
void MakeTiers(const float* transformed, int head_dim, const uint32_t* counts, int64_t num_keys, double fraction,
               int table_bytes, std::vector<uint8_t>* tiers);

// Counts [head_dim / 8][256] of the keys that a task searches: its own, or made in *made where it counts more than it
// searches.
const uint32_t* SearchedCounts(const SearchTask& task, std::vector<uint32_t>* made);

// Whether keys [num_keys, counted_keys) are fewer to take off than those before them are to count.
SEINE_HD inline bool TakesOff(int64_t num_keys, int64_t counted_keys) { return counted_keys - num_keys <= num_keys; }

}  // namespace seine

#endif  // SEINE_KERNELS_OPS_SCAN_COLLISION_H_
