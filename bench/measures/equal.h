// Methods at equal numbers of candidates: what each finds, and how many bytes it reads for that. No clock runs.
#ifndef SEINE_BENCH_MEASURES_EQUAL_H_
#define SEINE_BENCH_MEASURES_EQUAL_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/inputs/dataset.h"
#include "bench/inputs/truth.h"
#include "bench/methods/method.h"

namespace seine::bench {

// Means over queries, query heads and layers; every method is asked the same queries.
struct EqualRow {
  std::string name;
  int64_t asked = 0;             // candidates asked for; 0: as many as the method's own share comes to
  double beta = 0, rho = 0;      // that share, and collision's; else 0
  double candidates = 0;         // that it had
  int64_t fewest = 0, most = 0;  // of any query
  double recall_at_k = 0;        // of the answer, refined as the method does
  double recall_at_k_worst_head = 0;
  double recall_exact = 0;     // were all candidates scored exactly: the exact top-k among them
  double attention_mass = 0;   // softmax mass of the answer over that of the exact top-k
  double tokens_attended = 0;  // in the answer
  double bytes_per_key = 0;    // of code
  double bytes_read = 0;       // a query, of codes and keys, to choose
  int64_t num_queries = 0;
};

// Rows by number of candidates in the order of the methods' first, then of the methods; a method's own share last.
absl::StatusOr<std::vector<EqualRow>> MeasureEqual(const Dataset& dataset, const TruthOptions& truth,
                                                   const std::vector<std::unique_ptr<Method>>& methods);

}  // namespace seine::bench

#endif  // SEINE_BENCH_MEASURES_EQUAL_H_
