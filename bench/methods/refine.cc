// See refine.h.
#include "bench/methods/refine.h"

#include "bench/inputs/truth.h"

namespace seine::bench {

std::vector<int32_t> BestOf(const float* query, const float* rows, int dim, const std::vector<int64_t>& ids, int top_k,
                            std::vector<float>* scores) {
  constexpr size_t kAhead = 8;  // rows come from memory: ask for them in time
  scores->resize(ids.size());
  for (size_t i = 0; i < ids.size(); ++i) {
    if (i + kAhead < ids.size()) {
      const float* next = rows + ids[i + kAhead] * dim;
      for (int j = 0; j < dim; j += 16) __builtin_prefetch(next + j);
    }
    (*scores)[i] = Dot(query, rows + ids[i] * dim, dim);
  }
  std::vector<int32_t> best = TopIndices(scores->data(), static_cast<int64_t>(ids.size()), top_k);
  for (int32_t& b : best) b = static_cast<int32_t>(ids[b]);
  return best;
}

}  // namespace seine::bench
