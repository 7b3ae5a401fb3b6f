// What turns a peer's candidates into its answer: exact scores.
#ifndef SEINE_BENCH_METHODS_REFINE_H_
#define SEINE_BENCH_METHODS_REFINE_H_

#include <cstdint>
#include <vector>

namespace seine::bench {

// Those of `ids`, rows of `rows` [*, dim] in ascending order, that have the top_k largest products with `query` [dim];
// ties to the lowest. Ascending. `scores` is room for the products.
std::vector<int32_t> BestOf(const float* query, const float* rows, int dim, const std::vector<int64_t>& ids, int top_k,
                            std::vector<float>* scores);

}  // namespace seine::bench

#endif  // SEINE_BENCH_METHODS_REFINE_H_
