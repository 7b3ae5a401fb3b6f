// What keys and values that were stored with a loss do to one head's attention output.
#ifndef SEINE_BENCH_MEASURES_ATTENTION_PROBE_H_
#define SEINE_BENCH_MEASURES_ATTENTION_PROBE_H_

#include <cstdint>
#include <vector>

#include "bench/inputs/dataset.h"

namespace seine::bench {

// The first queries of the head's last positions weigh tokens' errors, some of the others are asked. Each query sees
// the tokens up to its own position. Tokens outside the zone, sink and local ones, are dense: always as they were.
// `head` and `values` [num_tokens, head_dim] must outlive the probe.
class AttentionProbe {
 public:
  AttentionProbe(const DatasetInfo& info, const Head& head, const std::vector<float>& values, int queries);

  // Puts the sink and the local tokens back. Rows are [num_tokens, head_dim] here and below.
  void RestoreDense(std::vector<float>* key_rows, std::vector<float>* value_rows) const;
  // Mean over the queries asked of |o^ - o| / |o|, o^ from these rows.
  double Error(const std::vector<float>& key_rows, const std::vector<float>& value_rows) const;
  // The same of rows of the tokens at `positions` alone, ascending: the others were evicted.
  double Error(const std::vector<int32_t>& positions, const std::vector<float>& key_rows,
               const std::vector<float>& value_rows) const;
  // Puts `share` of the zone's tokens back as they were: those of the largest query-weighted error (OjaKV, 5.1).
  void RestoreTop(double share, std::vector<float>* key_rows, std::vector<float>* value_rows) const;

 private:
  template <typename Visible>
  double MeanError(const std::vector<float>& key_rows, const std::vector<float>& value_rows, Visible visible) const;
  void Restore(int64_t begin, int64_t end, std::vector<float>* key_rows, std::vector<float>* value_rows) const;
  struct Ask {
    const float* query;
    int64_t visible;  // tokens
    std::vector<float> exact;
  };
  const Head& head_;
  const std::vector<float>& values_;
  const int head_dim_;
  std::vector<Ask> asks_;
  int64_t weighing_;  // queries, of all heads of the group
};

}  // namespace seine::bench

#endif  // SEINE_BENCH_MEASURES_ATTENTION_PROBE_H_
