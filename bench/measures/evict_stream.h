// Eviction as an index does it by itself: a layer's tokens appended in blocks, then one by one. What
// `seine-bench evict --interval` measures.
#ifndef SEINE_BENCH_MEASURES_EVICT_STREAM_H_
#define SEINE_BENCH_MEASURES_EVICT_STREAM_H_

#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"
#include "bench/measures/evict.h"
#include "kernels/backend.h"

namespace seine::bench {

struct StreamRow {
  int64_t interval = 0;
  int64_t most_tokens = 0;              // of any head, after any append
  int64_t peak_bytes = 0;               // keys and codes, at any moment: while a layer is cut back both sides exist
  int64_t whole_bytes = 0;              // the same of an index that evicts nothing
  double step_us = 0, eviction_us = 0;  // an appended token that evicts nothing, and one that does, a head; medians
};

// `setting` with its budget in tokens (of a share: of the layer's). Where the scorer looks at queries, tokens come with
// the layer's observed ones, over and over. Nothing where an index cannot evict with this scorer by itself.
absl::StatusOr<std::optional<StreamRow>> MeasureStream(const EvictLayer& layer, const EvictSetting& setting,
                                                       int64_t interval, Backend* backend);

}  // namespace seine::bench

#endif  // SEINE_BENCH_MEASURES_EVICT_STREAM_H_
