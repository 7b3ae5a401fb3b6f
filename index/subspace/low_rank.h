// Reading attention through bases: over codes or over rebuilt rows (OjaKV, 3.2 and A.4), and which tokens should
// better stay full-rank (5.1).
#ifndef SEINE_INDEX_SUBSPACE_LOW_RANK_H_
#define SEINE_INDEX_SUBSPACE_LOW_RANK_H_

#include <cstdint>
#include <vector>

#include "index/subspace/basis.h"
#include "kernels/types.h"

namespace seine {

// e_t = mean over the queries of |<q, r_t>| / sqrt(D), r_t = k_t - U U^T k_t. The residual of q gives the same product
// as that of k_t, and there are fewer queries than keys. Queries [num_queries, D] fp32, all of which see every key.
std::vector<float> QueryWeightedErrors(const Basis& basis, const ConstRows& keys, int64_t count, const float* queries,
                                       int num_queries);
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
