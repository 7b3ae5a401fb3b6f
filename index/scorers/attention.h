// Softmax attention of observed queries over a head's tokens: what SnapKV, TOVA and H2O are made of.
#ifndef SEINE_INDEX_SCORERS_ATTENTION_H_
#define SEINE_INDEX_SCORERS_ATTENTION_H_

#include <cstdint>
#include <vector>

#include "index/scorers/scorer.h"

namespace seine::scorers {

// INVALID_ARGUMENT "queries: ..." unless there are queries: at least one, and where they came with the call those of
// the last `window` positions, or of all where the sequence is shorter.
absl::Status CheckQueries(const ScoreInput& input, const char* scorer, int64_t window);

// One KV head's. Not thread-safe: the logits' storage is reused.
class HeadAttention {
 public:
  HeadAttention(const ScoreInput& input, int kv_head);

  // out[i] += share * softmax weight of token i, for every query head of the group, under query `query` (of the given
  // ones), which sees the tokens at its position and before. Sums in fp32, exponentials by math.h's ExpNonPositive.
  void Add(int64_t query, float share, float* out);

 private:
  const ScoreInput& input_;
  const HeadTokens& head_;
  const int kv_head_;
  std::vector<float> logits_;  // [group, tokens]
};

// out[i] += share * softmax(logits[n] * scale)[i].
void AddSoftmax(float* logits, int64_t n, float scale, float share, float* out);

}  // namespace seine::scorers

#endif  // SEINE_INDEX_SCORERS_ATTENTION_H_
