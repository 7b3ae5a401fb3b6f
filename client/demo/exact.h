// The truth that answers are held against: exact attention over all keys, in fp32.
#ifndef SEINE_CLIENT_DEMO_EXACT_H_
#define SEINE_CLIENT_DEMO_EXACT_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace seine::demo {

// How good one set of positions is for one query.
struct Quality {
  double recall = 0;          // share of the exact top k of the zone that the set holds
  double attention_mass = 0;  // softmax mass of the set over that of the exact top k
  // Softmax mass over that of all tokens: of the set and the dense tokens (sink and local), of the dense tokens alone,
  // and of these and the exact top k.
  double attention_covered = 0, dense_covered = 0, exact_covered = 0;
};

// The keys of one KV head, [num_tokens, head_dim].
class ExactHead {
 public:
  // `keys`: [num_tokens, num_kv_heads, head_dim], of which `kv_head` is copied.
  ExactHead(absl::Span<const float> keys, int64_t num_tokens, int num_kv_heads, int kv_head, int head_dim);

  // Judges `set`, the answer to `query` [head_dim] when the sequence held `num_tokens` tokens and its zone was
  // [zone_begin, zone_end). k is the size of the set. Logits are <q, k> / sqrt(head_dim).
  Quality Judge(absl::Span<const float> query, absl::Span<const int32_t> set, int64_t num_tokens, int64_t zone_begin,
                int64_t zone_end);

 private:
  const int64_t capacity_;
  const int head_dim_;
  std::vector<float> columns_;  // [head_dim, capacity_]: the inner loop runs over tokens, so it vectorises as it stands
  std::vector<float> logits_;   // [capacity_]
  std::vector<int32_t> order_;
};

}  // namespace seine::demo

#endif  // SEINE_CLIENT_DEMO_EXACT_H_
