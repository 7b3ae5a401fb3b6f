// What the step bench prints: one table for people, one JSON object for programs (its keys are a contract), one plot.
#ifndef SEINE_BENCH_TABLES_STEP_REPORT_H_
#define SEINE_BENCH_TABLES_STEP_REPORT_H_

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/inputs/layer_data.h"
#include "bench/measures/step.h"
#include "bench/report/plot.h"

namespace seine::bench {

struct StepReport {
  DatasetInfo data;
  LayerDataOptions shape;
  StepOptions options;
  std::string simd_target;
  std::string machine;        // the processor as the system names it; empty: it does not
  double bandwidth_gb_s = 0;  // that the backend's threads read
  size_t cache_bytes = 0;     // of the last level
  std::vector<StepRow> rows;
};

std::string RenderText(const StepReport& report);
nlohmann::ordered_json ToJson(const StepReport& report);
Plot MakePlot(const StepReport& report);

}  // namespace seine::bench

#endif  // SEINE_BENCH_TABLES_STEP_REPORT_H_
