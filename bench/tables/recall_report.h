// What the recall bench prints: one table for people, one JSON object for programs (its keys are a contract), one plot.
#ifndef SEINE_BENCH_TABLES_RECALL_REPORT_H_
#define SEINE_BENCH_TABLES_RECALL_REPORT_H_

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "bench/inputs/dataset.h"
#include "bench/measures/recall.h"
#include "bench/report/plot.h"

namespace seine::bench {

struct RecallReport {
  DatasetInfo data;
  int top_k = 100;
  Scope scope = Scope::kPerQHead;
  bool cold = true;
  std::string backend, simd_target;
  double bandwidth_gb_s = 0;
  std::string faiss;   // which FAISS the C++ baselines are; empty: none ran
  std::string peers;   // versions; empty: none ran
  size_t primary = 0;  // rows[primary] is the asked setting at its first beta
  std::vector<Row> rows;
  std::string codec;               // of the primary row
  std::string profile;             // balanced: path, or "own"
  std::optional<int64_t> horizon;  // balanced, where the data states RoPE
  double coarse_bits = 0, total_bits = 0;

  // The fastest exact search over the data as given. Rows whose name says a narrower dtype do not count.
  const Row& FastestExact() const;
  // Our exact scan over fp16 copies of fp32 keys; nullptr if it did not run.
  const Row* ExactFp16() const;
};

std::string RenderText(const RecallReport& report);
nlohmann::ordered_json ToJson(const RecallReport& report);
Plot MakePlot(const RecallReport& report);

}  // namespace seine::bench

#endif  // SEINE_BENCH_TABLES_RECALL_REPORT_H_
