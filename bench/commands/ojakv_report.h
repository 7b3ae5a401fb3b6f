// What `seine-bench subspace --ojakv` adds: its flags, and how its rows are written.
#ifndef SEINE_BENCH_COMMANDS_OJAKV_REPORT_H_
#define SEINE_BENCH_COMMANDS_OJAKV_REPORT_H_

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "bench/measures/subspaces/ojakv.h"

namespace seine::bench {

struct OjakvFlags {
  bool run = false;
  std::vector<std::string> methods;
  SubspaceConfig asked;  // without ranks, frame and profile
};

void AddOjakvFlags(CLI::App* app, OjakvFlags* flags);
// INVALID_ARGUMENT naming the flag. `layers`: of the trace.
absl::Status CheckOjakv(const OjakvFlags& flags, int head_dim, int layers);
// Measures and writes to standard output, as a table or as JSON.
absl::Status RunOjakv(const Dataset& dataset, const OjakvOptions& options, bool json);

}  // namespace seine::bench

#endif  // SEINE_BENCH_COMMANDS_OJAKV_REPORT_H_
