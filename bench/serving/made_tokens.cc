// See made_tokens.h.
#include "bench/serving/made_tokens.h"

#include <algorithm>

#include "bench/inputs/dataset.h"
#include "bench/inputs/synthetic.h"

namespace seine::bench {
namespace {

// [rows, dim] of one head into its column of [rows, heads, dim].
void Place(const std::vector<float>& rows, int head, int heads, int dim, std::vector<float>* out) {
  const int64_t count = static_cast<int64_t>(rows.size()) / dim;
  for (int64_t r = 0; r < count; ++r) {
    std::copy_n(&rows[r * dim], dim, &(*out)[(r * heads + head) * dim]);
  }
}

}  // namespace

Tokens MakeTokens(int kv_heads, int group, int dim, int64_t tokens, int64_t steps, uint64_t seed) {
  std::vector<float> keys(tokens * kv_heads * dim);
  Tokens made;
  made.queries32.resize(steps * kv_heads * group * dim);
  for (int h = 0; h < kv_heads; ++h) {
    // The queries of a group are drawn one after the other; what matters here is their number.
    const SyntheticHead head = MakeSynthetic({SyntheticKind::kRope, tokens, steps * group, dim, seed + h});
    Place(head.keys, h, kv_heads, dim, &keys);
    for (int g = 0; g < group; ++g) {
      const auto first = head.queries.begin() + g * steps * dim;
      Place({first, first + steps * dim}, h * group + g, kv_heads * group, dim, &made.queries32);
    }
  }
  made.keys = ToDType(DType::kFloat16, &keys);
  made.queries = ToDType(DType::kFloat16, &made.queries32);
  made.key_bytes = size_t{2} * kv_heads * dim;
  made.query_bytes = made.key_bytes * group;
  return made;
}

}  // namespace seine::bench
