// The exact answer that every method is held against, in plain fp32, and the scores of an answer.
//
// Scope per query head: the top_k keys of the zone by <q, k>, ties to the lowest position; a key's weight is its
// softmax weight. Scope per KV head: the top_k by the group's reduced logits (docs/architecture.md, "Grouped queries";
// the softmax of a head runs over all its tokens); a key's weight is the sum of the group's softmax weights.
#ifndef SEINE_BENCH_INPUTS_TRUTH_H_
#define SEINE_BENCH_INPUTS_TRUTH_H_

#include <cstdint>
#include <vector>

#include "bench/inputs/dataset.h"
#include "kernels/ops/query/search.h"

namespace seine::bench {

// One thing asked of an index: `group` queries that share one answer (1 under Scope::kPerQHead).
struct Ask {
  const float* queries = nullptr;  // [group, head_dim]
  int q_head = 0;                  // within the KV head's group; 0 for a shared answer
  std::vector<int32_t> top;        // exact answer, positions ascending
  std::vector<float> log_sums;     // [group] log-sum-exp of <q, k> * softmax_scale over the head's tokens
  double top_weight = 0;           // summed over `top`
};

struct TruthOptions {
  int head_dim = 0;
  int group = 1;  // queries of an ask
  int top_k = 100;
  Scope scope = Scope::kPerQHead;
  GqaReduce reduce = GqaReduce::kSoftmaxSum;
  float softmax_scale = 0;  // as used: never 0
};

// Every ask of a head with its exact answer, on all cores.
std::vector<Ask> MakeAsks(const Head& head, int head_group, const TruthOptions& options);

// Share of `ask.top` that `positions` holds.
double RecallOf(const Ask& ask, const std::vector<int32_t>& positions);

// Weight of `positions` over the weight of the exact answer.
double AttentionMassOf(const Ask& ask, const Head& head, const TruthOptions& options,
                       const std::vector<int32_t>& positions);

// <a, b> in fp32, 16 sums side by side.
float Dot(const float* a, const float* b, int dim);

// The count best of scores[0, n) by score, ties to the lowest index, as ascending indices.
std::vector<int32_t> TopIndices(const float* scores, int64_t n, int count);

}  // namespace seine::bench

#endif  // SEINE_BENCH_INPUTS_TRUTH_H_
