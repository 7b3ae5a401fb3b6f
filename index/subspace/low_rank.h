// Reading attention through bases: over codes or over rebuilt rows (OjaKV, 3.2 and A.4), and which tokens should
// better stay full-rank (5.1).
#ifndef SEINE_INDEX_SUBSPACE_LOW_RANK_H_
#define SEINE_INDEX_SUBSPACE_LOW_RANK_H_

#include <cstdint>
#include <vector>

#include "index/subspace/basis.h"
#include "kernels/types.h"

namespace seine {

// The last queries of one KV head: of each position, ascending, those of the `group` query heads that read it.
struct RecentQueries {
  const float* rows = nullptr;         // of the first position, [group][D], as attention gets them
  int64_t stride = 0;                  // floats from a position to the next
  int group = 0;                       // query heads
  const int64_t* positions = nullptr;  // [num_positions]
  int64_t num_positions = 0;
};

// e_t = mean over the queries at position t or after it, which can see the token, of |<q, r_t>| / sqrt(D), where
// r_t = k_t - U U^T k_t [count, D] and q carry the same RoPE. 0 where none does.
std::vector<float> QueryWeightedErrors(const float* residuals, const int32_t* positions, int64_t count, int head_dim,
                                       const RecentQueries& queries);
// Means over `width` neighbours (odd; those that exist): tokens beside one that matters matter too.
std::vector<float> PooledErrors(const std::vector<float>& errors, int width);
// The `count` places of the largest errors, ties to the lowest place, ascending: the hybrid's full-rank set.
std::vector<int32_t> FullRankSet(const std::vector<float>& errors, int64_t count);

// Attention output of one query [D] over `count` tokens, logits <q, k> / sqrt(D), never / sqrt(r) (A.4).
struct AttentionOutput {
  std::vector<float> output;  // [D]
  double log_sum_exp = 0;     // of the logits; -infinity of no token
};
// Full rows [count, D].
AttentionOutput FullAttention(const ConstRows& keys, const ConstRows& values, int64_t count, int head_dim,
                              const float* query);
// Codes, rows `basis.stride()` floats apart: scores q U_k, output expanded by U_v^T. Post-RoPE bases only.
AttentionOutput LowRankAttention(const Basis& key_basis, const float* key_codes, const Basis& value_basis,
                                 const float* value_codes, int64_t count, const float* query);

}  // namespace seine

#endif  // SEINE_INDEX_SUBSPACE_LOW_RANK_H_
