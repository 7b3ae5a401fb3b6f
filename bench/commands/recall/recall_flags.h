// The flags of `seine-bench recall`.
#ifndef SEINE_BENCH_COMMANDS_RECALL_RECALL_FLAGS_H_
#define SEINE_BENCH_COMMANDS_RECALL_RECALL_FLAGS_H_

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "bench/inputs/dataset.h"
#include "kernels/codecs/codec_list.h"
#include "kernels/ops/query/search.h"
#include "kernels/types.h"

namespace seine::bench {

struct RecallFlags {
  DatasetOptions data;
  int top_k = 100, window = 64, refine = 200, threads = 1;
  std::string codec, profile, coarse = "sign_ip", centre, scope = "q_head", reduce = "softmax_sum";
  std::optional<int64_t> horizon;
  CodecOptions codec_options;
  std::vector<double> betas;  // empty until CheckRecall: kUsualBeta
  std::vector<double> recall_targets;
  std::optional<double> rho;  // absent: PaperRho of the share
  std::string schedule = "fixed";
  std::vector<std::string> candidates;  // numbers and shares, as "100" and "2%"; not empty: EqualNumbers
  std::string backend = "cpu", cache = "cold", output = "table", plot, peers;
  std::vector<std::string> baselines;
  bool compare = false;

  bool paper_schedule() const { return schedule == "paper"; }
  bool collision() const { return coarse == "collision"; }
};

// Adds them to the subcommand.
void AddRecallFlags(CLI::App* app, RecallFlags* flags);

// What the data set and the index do not check themselves, under the names of the flags. Fills in what is absent: codec
// and betas.
absl::Status CheckRecall(RecallFlags* flags);

// The asked setting's search, without its share.
SearchParams SearchOf(const RecallFlags& flags);
Centre CentreOf(const std::string& name);

// Candidates that flags.candidates come to of `num_keys`, shares rounded up.
absl::StatusOr<std::vector<int64_t>> CandidatesOf(const RecallFlags& flags, int64_t num_keys);

}  // namespace seine::bench

#endif  // SEINE_BENCH_COMMANDS_RECALL_RECALL_FLAGS_H_
