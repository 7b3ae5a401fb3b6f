// Synthetic tokens for benches of a server.
#ifndef SEINE_BENCH_SERVING_MADE_TOKENS_H_
#define SEINE_BENCH_SERVING_MADE_TOKENS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace seine::bench {

// Synthetic keys of all KV heads and queries of all query heads.
struct Tokens {
  std::vector<uint8_t> keys;     // fp16 [tokens, num_kv_heads, head_dim]
  std::vector<uint8_t> queries;  // fp16 [steps, num_q_heads, head_dim]
  std::vector<float> queries32;  // the same
  size_t key_bytes = 0;          // of one token
  size_t query_bytes = 0;        // of one step
};

// `steps`: how many steps' queries. Keys look like those of a model after RoPE.
Tokens MakeTokens(int kv_heads, int group, int dim, int64_t tokens, int64_t steps, uint64_t seed);

}  // namespace seine::bench

#endif  // SEINE_BENCH_SERVING_MADE_TOKENS_H_
