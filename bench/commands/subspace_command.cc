// See subspace_command.h.
#include "bench/commands/subspace_command.h"

#include <cstdio>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "bench/commands/invalid_flag.h"
#include "bench/commands/ojakv_report.h"
#include "bench/commands/value_flag.h"
#include "bench/measures/projection.h"
#include "bench/measures/subspaces/subspace.h"
#include "bench/measures/subspaces/subspace_storage.h"
#include "bench/report/plot_file.h"
#include "bench/report/table.h"
#include "kernels/cpu/targets.h"
#include "profile/layout.h"

namespace seine::bench {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kSubspaceDescription[] =
    "Low-rank bases that follow the stream (OjaKV) beside ones that do not.\n"
    "\n"
    "The first half of the tokens is prefill, the second decode steps. static: calibrated by the profile (made-up "
    "keys: on their distribution before it drifts); pca_prefill: PCA of the prefill; oja_batch: one step with the "
    "prefill's covariance, the paper's; oja_T: Oja's rule every T tokens; triggered: only where the residual exceeds a "
    "threshold; oracle: PCA of all tokens. rer: residual energy ratio of the decode half; overlap: of the last basis "
    "with the oracle's; attention: |o^ - o| / |o| of the output from keys and values so stored, and with the tokens of "
    "the largest query-weighted error full-rank. Sink and local tokens are full-rank in both.\n"
    "\n"
    "  seine-bench subspace --trace bench/data/smollm2-135m-kjv-8k.safetensors \\\n"
    "    --profile bench/data/smollm2-135m.profile.safetensors --rank 38\n"
    "  seine-bench subspace --synthetic drift --num-keys 8192 --head-dim 128 --rank 76\n"
    "  seine-bench subspace --trace ... --profile ... --rank 38 --evict keydiff --keep .5  # bytes held\n"
    "  seine-bench subspace --trace ... --profile ... --rank 38 --ojakv  # OjaKV, our reading";

struct SubspaceFlags {
  DatasetOptions data;
  SubspaceOptions subspace;
  std::string profile, frame = "post_rope", output = "table", plot;
  std::optional<int> pre_rope_rank;
  std::optional<int64_t> prefill;
  std::optional<double> carried_to;
  std::string evict;  // scorer
  double keep = .5;
  OjakvFlags ojakv;
};

void AddFlags(CLI::App* app, SubspaceFlags* f) {
  using CLI::IsMember;
  const char* data = "Data";
  app->add_option("--trace", f->data.trace, "safetensors file of a recorded model (bench/data)")->group(data);
  app->add_option("--layers", f->data.layers, "of the trace; all that it holds if absent")->delimiter(',')->group(data);
  app->add_option("--profile", f->profile, "the model's profile, which the bases are calibrated by; a trace needs it")
      ->group(data);
  app->add_option("--synthetic", f->data.synthetic, "gaussian, anisotropic, rope or drift, in place of a trace")
      ->group(data);
  app->add_option("--num-keys", f->data.num_keys, "synthetic keys")->capture_default_str()->group(data);
  app->add_option("--head-dim", f->data.head_dim, "of synthetic keys")->capture_default_str()->group(data);
  app->add_option("--seed", f->data.seed, "of synthetic keys")->check(NoSign())->capture_default_str()->group(data);
  app->add_option("--sink", f->data.sink, "first tokens that attention sees full-rank")
      ->capture_default_str()
      ->group(data);
  app->add_option("--local", f->data.local, "last tokens that it does; they bring the queries")
      ->capture_default_str()
      ->group(data);
  app->add_option("--prefill", f->prefill, "tokens; absent: half of them")->group(data);
  const char* bases = "Bases";
  app->add_option("--rank", f->subspace.rank, "of keys after RoPE and of values")->capture_default_str()->group(bases);
  app->add_option("--pre-rope-rank", f->pre_rope_rank, "of keys before RoPE; absent: half of --rank, and 1")
      ->group(bases);
  app->add_option("--carried-to", f->carried_to,
                  "post-RoPE bases are calibrated for positions up to this; absent: the prefill's")
      ->group(bases);
  app->add_option("--learning-rate", f->subspace.oja.learning_rate, "eta, relative to the covariance's trace")
      ->capture_default_str()
      ->group(bases);
  app->add_option("--max-gain", f->subspace.oja.max_gain, "bound of a step, relative to the covariance in the basis")
      ->capture_default_str()
      ->group(bases);
  app->add_option("--interval", f->subspace.oja.interval, "tokens between checks of the error-triggered updates")
      ->capture_default_str()
      ->group(bases);
  app->add_option("--trigger", f->subspace.trigger, "its threshold, over the residual ratio at the prefill's end")
      ->capture_default_str()
      ->group(bases);
  app->add_option("--full-rank", f->subspace.full_rank, "share of the tokens that the hybrid keeps full-rank")
      ->capture_default_str()
      ->group(bases);
  const char* storage = "Storage in an index, low-rank and evicted (of a trace)";
  app->add_option("--evict", f->evict, "scorer: keydiff, knorm, ...; measures what an index takes instead")
      ->group(storage);
  app->add_option("--keep", f->keep, "share of the tokens that are held at the end")
      ->capture_default_str()
      ->group(storage);
  AddOjakvFlags(app, &f->ojakv);
  const char* run = "Run";
  app->add_option("--num-queries", f->subspace.queries, "a query head, for attention's output")
      ->capture_default_str()
      ->group(run);
  app->add_option("--frame", f->frame, "whose keys the JSON's first figures and the plot are of: post_rope or pre_rope")
      ->transform(ValueOf("KeyFrame"))
      ->capture_default_str()
      ->group(run);
  app->add_option("-o,--output", f->output, "table or json")
      ->check(IsMember({"table", "json"}))
      ->capture_default_str()
      ->group(run);
  app->add_option("--plot", f->plot, "writes the residual energy ratio over time: .svg or .png")->group(run);
}

absl::Status Check(const SubspaceFlags& f, const DatasetInfo& info) {
  const SubspaceOptions& o = f.subspace;
  for (const auto& [flag, rank] : {std::pair{"rank", o.rank}, std::pair{"pre-rope-rank", o.pre_rope_rank}}) {
    if (rank < 1 || rank > info.head_dim) {
      return InvalidFlag(flag, absl::StrCat(rank, " is not in [1, ", info.head_dim, "]"));
    }
  }
  if (o.prefill < 1 || o.prefill >= info.num_tokens) {
    return InvalidFlag("prefill",
                       absl::StrCat(o.prefill, " leaves no decode part of the ", info.num_tokens, " tokens"));
  }
  if (!(o.carried_to >= 0)) return InvalidFlag("carried-to", "at least 0");
  if (!(o.trigger > 0)) return InvalidFlag("trigger", "above 0");
  if (!(o.full_rank >= 0 && o.full_rank <= 1)) return InvalidFlag("full-rank", "not in [0, 1]");
  if (o.queries < 1) return InvalidFlag("num-queries", "at least 1");
  if (absl::Status s = Validate(o.oja); !s.ok()) return absl::InvalidArgumentError(absl::StrCat("--", s.message()));
  if (f.ojakv.run && info.synthetic) return InvalidFlag("ojakv", "needs a trace: synthetic keys have no values");
  if (f.ojakv.run && !f.evict.empty()) return InvalidFlag("ojakv", "measures no eviction; leave --evict out");
  if (f.ojakv.run && o.full_rank >= 1) return InvalidFlag("full-rank", "an index keeps less than all; below 1");
  if (absl::Status s = CheckOjakv(f.ojakv, info.head_dim, static_cast<int>(info.layers.size())); !s.ok()) return s;
  if (!f.evict.empty() && info.synthetic) return InvalidFlag("evict", "needs a trace: synthetic keys have no values");
  const double least = static_cast<double>(info.num_positions) / static_cast<double>(info.num_tokens);
  if (!f.evict.empty() && !(f.keep > least && f.keep < 1)) {
    return InvalidFlag("keep", absl::StrCat(f.keep, " is not in (", least, ", 1): the tokens that bring queries stay"));
  }
  if (f.frame == "pre_rope" && !o.rope.stated()) return InvalidFlag("frame", "the data state no RoPE");
  return absl::OkStatus();
}

// Fills in what follows from the data.
absl::Status Complete(const DatasetInfo& info, SubspaceFlags* f) {
  SubspaceOptions& o = f->subspace;
  if (!info.rope_json.empty()) {
    auto rope = ParseRope(info.rope_json, info.head_dim, info.rope_style, info.num_tokens);
    if (!rope.ok()) {
      return absl::Status(rope.status().code(), absl::StrCat("the data's rope: ", rope.status().message()));
    }
    o.rope = *std::move(rope);
  }
  o.pre_rope_rank = f->pre_rope_rank.value_or(o.rank / 2 + 1);
  o.prefill = f->prefill.value_or(info.num_tokens / 2);
  o.carried_to = f->carried_to.value_or(static_cast<double>(o.prefill));
  if (info.synthetic != f->profile.empty()) {
    return InvalidFlag("profile", info.synthetic ? "synthetic keys bring their own" : "a trace needs its model's");
  }
  if (info.synthetic) return absl::OkStatus();
  auto profile = ReadProfile(f->profile);
  if (!profile.ok()) {
    return absl::Status(profile.status().code(), absl::StrCat("--profile: ", profile.status().message()));
  }
  const int layers = info.layers.back() + 1;
  if (profile->num_layers() < layers || profile->num_kv_heads != info.num_kv_heads ||
      profile->head_dim != info.head_dim) {
    return InvalidFlag(
        "profile", absl::StrCat("of ", profile->num_layers(), " layers of ", profile->num_kv_heads,
                                " KV heads, head_dim ", profile->head_dim, "; the trace has layer ", layers - 1, ", ",
                                info.num_kv_heads, " KV heads, head_dim ", info.head_dim));
  }
  o.profile = InLayout(std::make_shared<const Profile>(*std::move(profile)), o.rope);
  return absl::OkStatus();
}

std::string Number(std::optional<double> v, const char* format) {
  if (!v) return "-";
  char text[32];
  std::snprintf(text, sizeof text, format, *v);
  return text;
}

// How much of the keys' energy bases that follow leave out, beside those of the prefill and the best of that rank.
std::string Verdict(const SubspaceFlags& f, const SubspaceResult& result) {
  const std::string stream = "keys_" + f.frame;
  const auto rer = [&](const char* method) { return result.Find(stream, method)->rer; };
  return absl::StrFormat(
      "%s at rank %d: oja_32 leaves out %.4f of the energy, the prefill's bases %.4f, the best %.4f\n", stream,
      result.Find(stream, "oja_32")->rank, rer("oja_32"), rer("pca_prefill"), rer("oracle"));
}

std::string Render(const SubspaceFlags& f, const DatasetInfo& info, const SubspaceResult& result) {
  std::string text = absl::StrFormat("%s%s: %d tokens, %d of them prefill; %d heads, head_dim %d; %s, one thread\n\n",
                                     info.synthetic ? "synthetic: " : "trace: ", info.source, info.num_tokens,
                                     f.subspace.prefill, info.num_heads(), info.head_dim, cpu::TargetName());
  std::vector<std::vector<std::string>> table = {
      {"stream", "method", "rank", "rer", "overlap", "updates", "us/update", "attention", "hybrid"}};
  for (const SubspaceRow& row : result.rows) {
    table.push_back({row.stream, row.method, absl::StrCat(row.rank), Number(row.rer, "%.4f"),
                     Number(row.overlap, "%.3f"), Number(row.updates, "%.0f"),
                     Number(row.updates > 0 ? std::optional(row.us_per_update) : std::nullopt, "%.0f"),
                     Number(row.attention_error, "%.4f"), Number(row.hybrid_error, "%.4f")});
  }
  const ProjectionRate rate = MeasureProjection(info.head_dim, f.subspace.rank);
  return absl::StrCat(
      text, RenderTable(table),
      absl::StrFormat("\nprojecting rows: %.1f GFlop/s at rank %d of %d; Eigen's product of that shape: "
                      "%.1f\n",
                      rate.project_gflops, f.subspace.rank, info.head_dim, rate.gemm_gflops),
      Verdict(f, result));
}

Json ToJson(const SubspaceRow& row) {
  Json j;
  j["stream"] = row.stream;
  j["method"] = row.method;
  j["rank"] = row.rank;
  j["rer"] = row.rer;
  j["overlap"] = row.overlap;
  j["updates"] = row.updates;
  j["us_per_update"] = row.updates > 0 ? Json(row.us_per_update) : Json(nullptr);
  j["attention_error"] = row.attention_error ? Json(*row.attention_error) : Json(nullptr);
  j["hybrid_error"] = row.hybrid_error ? Json(*row.hybrid_error) : Json(nullptr);
  j["rer_over_time"] = row.rer_over_time;
  return j;
}

Json ToJson(const SubspaceFlags& f, const DatasetInfo& info, const SubspaceResult& result) {
  const std::string stream = "keys_" + f.frame;
  const SubspaceRow &fixed = *result.Find(stream, "static"), &oja = *result.Find(stream, "oja_32");
  Json j;
  j["rer_static"] = fixed.rer;
  j["rer_oja"] = oja.rer;
  j["rer_oracle"] = result.Find(stream, "oracle")->rer;
  j["overlap_static"] = fixed.overlap;
  j["overlap_oja"] = oja.overlap;
  j["updates"] = oja.updates;
  j["us_per_update"] = oja.us_per_update;
  j["frame"] = f.frame;
  j["rank"] = fixed.rank;
  j["source"] = info.source;
  j["synthetic"] = info.synthetic;
  j["head_dim"] = info.head_dim;
  j["num_tokens"] = info.num_tokens;
  j["prefill"] = f.subspace.prefill;
  j["carried_to"] = f.subspace.carried_to;
  j["learning_rate"] = f.subspace.oja.learning_rate;
  j["max_gain"] = f.subspace.oja.max_gain;
  j["trigger"] = f.subspace.trigger;
  j["full_rank"] = f.subspace.full_rank;
  j["simd_target"] = cpu::TargetName();
  const ProjectionRate rate = MeasureProjection(info.head_dim, f.subspace.rank);
  j["project_gflops"] = rate.project_gflops;
  j["gemm_gflops"] = rate.gemm_gflops;
  j["bucket_tokens"] = result.bucket_tokens;
  j["rows"] = Json::array();
  for (const SubspaceRow& row : result.rows) j["rows"].push_back(ToJson(row));
  return j;
}

std::string Render(const SubspaceFlags& f, const DatasetInfo& info, const std::vector<StorageRow>& rows) {
  std::string text = absl::StrFormat(
      "trace: %s: %d tokens, %d heads, head_dim %d; %s keeps %.0f%%, full-rank %.0f%%\n\n", info.source,
      info.num_tokens, info.num_heads(), info.head_dim, f.evict, 100 * f.keep, 100 * f.subspace.full_rank);
  std::vector<std::vector<std::string>> table = {
      {"keys", "rank", "evicted", "tokens", "bytes", "of them low-rank", "attention"}};
  for (const StorageRow& row : rows) {
    table.push_back({row.key_rank == 0 ? "full-rank" : row.frame,
                     row.key_rank == 0 ? "-" : absl::StrCat(row.key_rank, " / ", f.subspace.rank),
                     row.evicted ? "yes" : "no", Number(100 * row.kept, "%.1f %%"), Number(100 * row.bytes, "%.1f %%"),
                     Number(100 * row.low_rank_bytes, "%.1f %%"), Number(row.attention_error, "%.4f")});
  }
  const auto least =
      std::min_element(rows.begin(), rows.end(), [](const auto& a, const auto& b) { return a.bytes < b.bytes; });
  return text + RenderTable(table) +
         absl::StrFormat("\nfewest bytes: %.1f%% of the full fp16 cache's, and attention errs by %.4f\n",
                         100 * least->bytes, least->attention_error);
}

Json ToJson(const SubspaceFlags& f, const DatasetInfo& info, const std::vector<StorageRow>& rows) {
  Json j;
  j["source"] = info.source;
  j["num_tokens"] = info.num_tokens;
  j["head_dim"] = info.head_dim;
  j["scorer"] = f.evict;
  j["keep"] = f.keep;
  j["value_rank"] = f.subspace.rank;
  j["full_rank"] = f.subspace.full_rank;
  j["rows"] = Json::array();
  for (const StorageRow& row : rows) {
    j["rows"].push_back({{"frame", row.key_rank == 0 ? Json(nullptr) : Json(row.frame)},
                         {"key_rank", row.key_rank == 0 ? Json(nullptr) : Json(row.key_rank)},
                         {"evicted", row.evicted},
                         {"tokens", row.kept},
                         {"bytes", row.bytes},
                         {"low_rank_bytes", row.low_rank_bytes},
                         {"attention_error", row.attention_error}});
  }
  return j;
}

Plot MakePlot(const SubspaceFlags& f, const DatasetInfo& info, const SubspaceResult& result) {
  const std::string stream = "keys_" + f.frame;
  Plot plot;
  plot.title = "What the bases leave out, over time";
  plot.subtitle = absl::StrCat(info.synthetic ? "synthetic " : "", info.source, ", ", stream, ", rank ",
                               result.Find(stream, "static")->rank, " of ", info.head_dim);
  plot.x_label = "position";
  plot.y_label = "residual energy ratio";
  for (const char* method : {"static", "pca_prefill", "oja_32", "triggered", "oracle"}) {
    Series series{method, {}, true, false};
    auto position = static_cast<double>(f.subspace.prefill);
    for (const double rer : result.Find(stream, method)->rer_over_time) {
      series.points.emplace_back(position += static_cast<double>(result.bucket_tokens), rer);
    }
    plot.series.push_back(std::move(series));
  }
  return plot;
}

absl::Status RunStorage(const SubspaceFlags& f, const Dataset& dataset) {
  const auto backend = MakeCpuBackend(/*threads=*/0);
  const auto rows = MeasureStorage(dataset, f.subspace, f.evict, f.keep, backend.get());
  if (!rows.ok()) return absl::Status(rows.status().code(), absl::StrCat("--evict: ", rows.status().message()));
  if (f.output == "json") {
    std::cout << ToJson(f, dataset.info(), *rows).dump(2) << std::endl;
  } else {
    std::cout << Render(f, dataset.info(), *rows) << std::flush;
  }
  return std::cout ? absl::OkStatus() : absl::UnavailableError("cannot write to standard output");
}

OjakvOptions OjakvOf(const SubspaceFlags& f, const DatasetInfo& info) {
  OjakvOptions o;
  o.rank = f.subspace.rank;
  o.pre_rope_rank = f.subspace.pre_rope_rank;
  o.methods = f.ojakv.methods;
  o.asked = f.ojakv.asked;
  o.asked.oja.interval = f.subspace.oja.interval;
  o.asked.oja.learning_rate = f.subspace.oja.learning_rate;
  o.asked.oja.max_gain = f.subspace.oja.max_gain;
  o.asked.carried_to = f.carried_to ? static_cast<int64_t>(*f.carried_to) : info.num_tokens;
  o.full_rank = f.subspace.full_rank;
  o.queries = f.subspace.queries;
  o.profile = f.subspace.profile;
  o.rope = f.subspace.rope;
  return o;
}

absl::Status Run(SubspaceFlags f) {
  if (absl::Status s = CheckPlotPath(f.plot); !s.ok()) return s;
  f.data.granule = 1;
  auto dataset = Dataset::Open(f.data);
  if (!dataset.ok()) return dataset.status();
  const DatasetInfo& info = (*dataset)->info();
  if (absl::Status s = Complete(info, &f); !s.ok()) return s;
  if (absl::Status s = Check(f, info); !s.ok()) return s;
  if (!f.evict.empty()) return RunStorage(f, **dataset);
  if (f.ojakv.run) return RunOjakv(**dataset, OjakvOf(f, info), f.output == "json");
  const auto result = MeasureSubspaces(**dataset, f.data, f.subspace);
  if (!result.ok()) return result.status();
  if (f.output == "json") {
    std::cout << ToJson(f, info, *result).dump(2) << std::endl;
  } else {
    std::cout << Render(f, info, *result) << std::flush;
  }
  if (!std::cout) return absl::UnavailableError("cannot write to standard output");
  return WritePlot(MakePlot(f, info, *result), f.plot);
}

}  // namespace

void AddSubspaceCommand(CLI::App* app, std::function<absl::Status()>* run) {
  CLI::App* command = app->add_subcommand("subspace", kSubspaceDescription);
  auto flags = std::make_shared<SubspaceFlags>();
  AddFlags(command, flags.get());
  command->callback([flags, run] { *run = [flags] { return Run(*flags); }; });
}

}  // namespace seine::bench
