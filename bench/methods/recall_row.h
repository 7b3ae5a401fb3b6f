// What a method's recall is told by.
#ifndef SEINE_BENCH_METHODS_RECALL_ROW_H_
#define SEINE_BENCH_METHODS_RECALL_ROW_H_

#include <cstdint>
#include <optional>
#include <string>

namespace seine::bench {

// Means over queries, heads and layers. Times are medians, one thread.
struct Row {
  std::string name;
  std::optional<double> beta;           // as asked, or what came of recall_target
  std::optional<double> rho;            // of collision's tiers
  std::optional<double> recall_target;  // of the candidates, coarse_recall
  bool exact = false;
  bool peer = false;        // not Seine
  int64_t num_queries = 0;  // answered for the figures below
  double recall_at_k = 0;
  double recall_at_k_worst_head = 0;  // the worst query head's mean (KV head's where a group shares its answer)
  std::optional<double> attention_mass;
  std::optional<double> coarse_recall;  // share of the exact top-k that stage I lets through
  double bytes_per_key = 0;
  double scan_bytes_per_key = 0;
  double us_per_query = 0;
  std::optional<double> encode_keys_per_s;  // the codec alone, fp16 keys
  // Seine's own clocks; medians, candidates and rescans are means.
  std::optional<double> scan_ns_per_key;
  std::optional<double> scan_bandwidth_share;         // bytes that the scan reads a second, over the bandwidth
  std::optional<double> scan_bandwidth_share_paired;  // median over answers, each against a read just before it (cold)
  std::optional<double> prepare_us, scan_us, select_us, rerank_us, refine_us, candidates, rescans;
};

}  // namespace seine::bench

#endif  // SEINE_BENCH_METHODS_RECALL_ROW_H_
