// What the drift bench prints: one table for people, one JSON object for programs (its keys are a contract), one plot.
#ifndef SEINE_BENCH_TABLES_DRIFT_REPORT_H_
#define SEINE_BENCH_TABLES_DRIFT_REPORT_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/drift/drift.h"
#include "bench/inputs/dataset.h"
#include "bench/report/plot.h"

namespace seine::bench {

struct DriftReport {
  DatasetInfo data;
  DriftOptions options;
  std::string profile;   // seine's: a path, or "prefill" where it is measured there; empty: seine does not run
  std::string schedule;  // of the paper's candidates: "fixed" or "paper"
  uint64_t seed = 1;
  std::vector<DriftRow> rows;
};

std::string RenderText(const DriftReport& report);
nlohmann::ordered_json ToJson(const DriftReport& report);
Plot MakePlot(const DriftReport& report);

}  // namespace seine::bench

#endif  // SEINE_BENCH_TABLES_DRIFT_REPORT_H_
