// See recall_command.h.
#include "bench/commands/recall/recall_command.h"

#include <cmath>
#include <cstdio>
#include <iostream>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "bench/commands/invalid_flag.h"
#include "bench/commands/recall/recall_flags.h"
#include "bench/commands/recall/recall_methods.h"
#include "bench/measures/equal.h"
#include "bench/measures/recall.h"
#include "bench/methods/peers.h"
#include "bench/report/plot_file.h"
#include "bench/tables/equal_report.h"
#include "bench/tables/recall_report.h"
#include "kernels/codecs/codec_traits.h"

namespace seine::bench {
namespace {

constexpr char kRecallDescription[] =
    "Recall and speed of retrieval against exact attention, on a recorded trace or synthetic keys.\n"
    "\n"
    "Keys are the tokens [sink, n - local) of a trace, cut to a multiple of 64 (or of --window); queries are those of "
    "the last `local` positions that the trace holds, one query head at a time. Truth is the exact top-k in fp32. "
    "Figures are means over queries, heads and layers; times are medians of one thread, with the caches emptied before "
    "each answer.\n"
    "\n"
    "  seine-bench recall --trace bench/data/smollm2-135m-kjv-8k.safetensors \\\n"
    "    --candidate-fraction .05,.10,.25 --compare\n"
    "  seine-bench recall --synthetic rope --num-keys 1048576 --head-dim 128 --candidate-fraction .02 \\\n"
    "    --peers \"python3 bench/methods/peers.py\"\n"
    "  seine-bench recall --trace bench/data/smollm2-135m-kjv-8k.safetensors --candidates 1%,2%,5%,10%";

RecallOptions Options(const RecallFlags& f, const DatasetInfo& info) {
  RecallOptions o;
  o.truth.head_dim = info.head_dim;
  o.truth.group = f.scope == "kv_head" ? info.group : 1;
  o.truth.top_k = f.top_k;
  o.truth.scope = SearchOf(f).scope;
  o.truth.reduce = SearchOf(f).gqa_reduce;
  o.truth.softmax_scale = 1 / std::sqrt(static_cast<float>(info.head_dim));
  o.cold = f.cache == "cold";
  return o;
}

absl::Status Print(const RecallFlags& f, const RecallReport& report) {
  if (f.output == "json") {
    std::cout << ToJson(report).dump(2) << std::endl;
  } else {
    std::cout << RenderText(report) << std::flush;
  }
  if (!std::cout) return absl::UnavailableError("cannot write to standard output");
  return WritePlot(MakePlot(report), f.plot);
}

// --candidates: no clock runs.
absl::Status RunEqual(const RecallFlags& f, const Dataset& dataset, Backend* backend) {
  EqualReport report;
  auto methods = MakeEqualMethods(f, dataset.info(), backend, &report.left_out);
  if (!methods.ok()) return methods.status();
  const RecallOptions options = Options(f, dataset.info());
  auto rows = MeasureEqual(dataset, options.truth, *methods);
  if (!rows.ok()) return rows.status();
  report.data = dataset.info();
  report.top_k = f.top_k;
  report.profile = f.profile.empty() ? "own" : f.profile;
  report.faiss = FaissVersion();
  report.rows = *std::move(rows);
  for (const std::string& what : report.left_out) std::fprintf(stderr, "seine-bench: left out: %s\n", what.c_str());
  if (f.output == "json") {
    std::cout << ToJson(report).dump(2) << std::endl;
  } else {
    std::cout << RenderText(report) << std::flush;
  }
  return std::cout ? absl::OkStatus() : absl::UnavailableError("cannot write to standard output");
}

absl::Status Run(RecallFlags f) {
  if (absl::Status s = CheckRecall(&f); !s.ok()) return s;
  if (absl::Status s = CheckPlotPath(f.plot); !s.ok()) return s;
  f.data.granule = f.window;
  f.data.own_queries = TraitsOf(f.codec).needs_profile && f.profile.empty();
  auto dataset = Dataset::Open(f.data);
  if (!dataset.ok()) return dataset.status();
  const DatasetInfo& info = (*dataset)->info();
  if (f.top_k > info.num_keys()) {
    return InvalidFlag("top-k", absl::StrCat(f.top_k, " is more than the ", info.num_keys(), " keys of a head"));
  }
  std::string why;
  const auto host = MakeCpuBackend(f.threads), backend = MakeBackend(f.backend, f.threads, &why);
  if (backend == nullptr) return absl::FailedPreconditionError(absl::StrCat("--backend: ", why));
  if (!f.candidates.empty()) return RunEqual(f, **dataset, backend.get());
  auto methods = MakeRecallMethods(f, info, backend.get());
  if (!methods.ok()) return methods.status();
  MemoryProbe probe(host.get());
  if (!probe.ok()) return absl::ResourceExhaustedError("not enough memory to measure the read bandwidth");
  constexpr int kBandwidthPasses = 8;
  probe.Measure(kBandwidthPasses);
  const RecallOptions options = Options(f, info);
  auto rows = MeasureRecall(**dataset, options, *methods, &probe);
  if (!rows.ok()) return rows.status();

  RecallReport report{info,
                      f.top_k,
                      options.truth.scope,
                      options.cold,
                      backend->name(),
                      backend->simd_target(),
                      probe.best_gb_s(),
                      FaissVersion(),
                      "",
                      0,
                      *std::move(rows),
                      "",
                      "",
                      {},
                      0,
                      0};
  if (!f.compare && f.baselines.empty()) report.faiss.clear();
  report.codec = f.codec;
  if (TraitsOf(f.codec).needs_profile) {
    report.profile = f.profile.empty() ? "own" : f.profile;
    if (!info.rope_json.empty()) report.horizon = f.horizon.value_or(kDefaultHorizon);
    report.coarse_bits = f.codec_options.coarse_bits;
    report.total_bits = f.codec_options.total_bits;
  }
  for (Row& row : report.rows) row.peer = row.name.rfind("faiss", 0) == 0;
  if (!f.peers.empty()) {
    auto peers = RunPeers(**dataset, {f.peers, f.top_k, f.betas, options.cold});
    if (!peers.ok()) return peers.status();
    report.peers = peers->versions;
    report.rows.insert(report.rows.end(), peers->rows.begin(), peers->rows.end());
  }
  return Print(f, report);
}

}  // namespace

void AddRecallCommand(CLI::App* app, std::function<absl::Status()>* run) {
  CLI::App* command = app->add_subcommand("recall", kRecallDescription);
  auto flags = std::make_shared<RecallFlags>();
  AddRecallFlags(command, flags.get());
  command->callback([flags, run] { *run = [flags] { return Run(*flags); }; });
}

}  // namespace seine::bench
