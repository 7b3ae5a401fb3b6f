// See evict_command.h.
#include "bench/commands/evict_command.h"

#include <algorithm>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "bench/commands/invalid_flag.h"
#include "bench/commands/scorer_flags.h"
#include "bench/commands/value_flag.h"
#include "bench/measures/evict.h"
#include "bench/measures/evict_stream.h"
#include "bench/report/plot_file.h"
#include "bench/report/progress.h"
#include "bench/report/table.h"
#include "profile/layout.h"

namespace seine::bench {
namespace {

constexpr char kEvictDescription[] =
    "How much of later queries' attention each eviction scorer keeps, and how fast it is.\n"
    "\n"
    "Of a trace whose last Q positions have queries, all but the last Q / 2 tokens are scored; scorers that look at "
    "queries see the first half of them, and the softmax mass that the other half pays to what was kept is measured, "
    "over that of all scored tokens. Times are of one thread with the caches emptied before each run.\n"
    "\n"
    "  seine-bench evict --trace bench/data/smollm2-135m-kjv-8k.safetensors --budget 10%,25%,50%\n"
    "  seine-bench evict --synthetic rope --num-keys 65536 --kv-heads 8 --dtype fp16 \\\n"
    "    --scorer keydiff,manifoldkv";

struct EvictFlags {
  DatasetOptions data;
  int kv_heads = 1;
  std::string profile, heads = "uniform", output = "table", plot;
  std::vector<std::string> scorers = {"all"};
  std::vector<std::string> budgets = {"25%"};
  std::vector<GivenOption> options;
  KeepConfig keep;
  double safeguard = BudgetConfig().safeguard, beta = BudgetConfig().pyramid_ratio;
  int64_t interval = 0;
  int threads = 1, repeats = EvictSetting().repeats;
};

void AddFlags(CLI::App* app, EvictFlags* f) {
  using CLI::IsMember;
  const char* data = "Data";
  app->add_option("--trace", f->data.trace, "safetensors file of a recorded model (bench/data)")->group(data);
  app->add_option("--layers", f->data.layers, "of the trace; all that it holds if absent")->delimiter(',')->group(data);
  app->add_option("--profile", f->profile, "the model's profile: Q-Filters' directions come from it, not from queries")
      ->group(data);
  app->add_option("--synthetic", f->data.synthetic, "gaussian, anisotropic, rope or drift, in place of a trace")
      ->group(data);
  app->add_option("--num-keys", f->data.num_keys, "synthetic keys a head")->capture_default_str()->group(data);
  app->add_option("--kv-heads", f->kv_heads, "heads of synthetic keys")->capture_default_str()->group(data);
  app->add_option("--head-dim", f->data.head_dim, "of synthetic keys")->capture_default_str()->group(data);
  app->add_option("--seed", f->data.seed, "of synthetic keys")->check(NoSign())->capture_default_str()->group(data);
  app->add_option("--dtype", f->data.dtype,
                  "of the keys: fp32, fp16 or bf16; absent: the trace's own, fp32 where synthetic")
      ->transform(ValueOf("DType"))
      ->group(data);
  const char* evict = "Eviction";
  app->add_option("--scorer", f->scorers, "names, or all")->delimiter(',')->capture_default_str()->group(evict);
  app->add_option("--budget", f->budgets, "tokens a head, or the share kept: 2048 or 25%; several")
      ->delimiter(',')
      ->capture_default_str()
      ->group(evict);
  app->add_option("--heads", f->heads, "how the budget is dealt out: uniform, adaptive or pyramid")
      ->transform(ValueOf("HeadBudget"))
      ->capture_default_str()
      ->group(evict);
  app->add_option("--safeguard", f->safeguard, "adaptive: share of its budget that a head is sure of")
      ->capture_default_str()
      ->group(evict);
  app->add_option("--pyramid-ratio,--beta", f->beta, "pyramid: the mean budget over the last layer's, at least 1")
      ->capture_default_str()
      ->group(evict);
  app->add_option("--sinks", f->keep.sinks, "first positions that are always kept")
      ->capture_default_str()
      ->group(evict);
  app->add_option("--recent", f->keep.recent, "last positions that are always kept")
      ->capture_default_str()
      ->group(evict);
  app->add_option("--recent-share", f->keep.recent_share, "share of the budget for the last positions")
      ->capture_default_str()
      ->group(evict);
  app->add_option("--positions", f->keep.positions, "further positions that are always kept")
      ->delimiter(',')
      ->group(evict);
  app->add_option("--interval", f->interval,
                  "tokens: also measures what an index does that evicts by itself every so many; 0: not measured")
      ->capture_default_str()
      ->group(evict);
  AddScorerFlags(app, &f->options);
  const char* run = "Run";
  app->add_option("--threads", f->threads, "of the backend; 0: one a core")->capture_default_str()->group(run);
  app->add_option("--repeats", f->repeats, "timed runs of each row, of which the best counts")
      ->capture_default_str()
      ->group(run);
  app->add_option("-o,--output", f->output, "table or json")
      ->check(IsMember({"table", "json"}))
      ->capture_default_str()
      ->group(run);
  app->add_option("--plot", f->plot, "writes retained attention against the budget: .svg or .png")->group(run);
}

// "25%": the share kept; else tokens a head.
absl::StatusOr<BudgetConfig> ParseBudget(const EvictFlags& f, const std::string& text) {
  BudgetConfig budget;
  budget.safeguard = f.safeguard;
  budget.pyramid_ratio = f.beta;
  budget.heads = f.heads == "adaptive"  ? HeadBudget::kAdaptive
                 : f.heads == "pyramid" ? HeadBudget::kPyramid
                                        : HeadBudget::kUniform;
  absl::string_view number = text;
  double share = 0;
  if (absl::ConsumeSuffix(&number, "%")) {
    if (!absl::SimpleAtod(number, &share) || !(share > 0 && share < 100)) {
      return InvalidFlag("budget", absl::StrCat(text, " is no share between 0% and 100%"));
    }
    budget.ratio = 1 - share / 100;
  } else if (!absl::SimpleAtoi(number, &budget.tokens) || budget.tokens < 1) {
    return InvalidFlag("budget", absl::StrCat(text, " is neither a number of tokens nor a share such as 25%"));
  }
  if (absl::Status s = Validate(budget); !s.ok()) return s;
  return budget;
}

absl::StatusOr<std::vector<EvictSetting>> Settings(const EvictFlags& f, bool has_values) {
  std::vector<std::string> names = f.scorers;
  if (names == std::vector<std::string>{"all"}) {
    names = ScorerNames();
    names.erase(std::find(names.begin(), names.end(), "client"));  // needs somebody's scores
  }
  for (const GivenOption& option : f.options) {
    const auto has = [&](const std::string& name) {
      return FindScorer(name) != nullptr && FindScorer(name)->Has(option.name);
    };
    if (std::any_of(names.begin(), names.end(), has)) continue;
    const std::string flag = absl::StrReplaceAll(option.name, {{"_", "-"}});
    return InvalidFlag(flag, absl::StrCat("only ", ScorersWith(option.name), " takes it"));
  }
  std::vector<EvictSetting> settings;
  for (const std::string& name : names) {
    ScorerConfig scorer;
    scorer.name = name;
    if (name == "client") return InvalidFlag("scorer", "client scores come with a call; the bench has none");
    const bool weighted = std::any_of(f.options.begin(), f.options.end(),
                                      [](const GivenOption& option) { return option.name == "value_weight"; });
    if (name == "expected_attention") scorer.value_norms = has_values && !weighted;
    // With several scorers, an option goes to those that have it.
    for (const GivenOption& option : f.options) {
      if (FindScorer(name) != nullptr && FindScorer(name)->Has(option.name)) option.set(&scorer);
    }
    if (scorer.value_weight == ValueWeight::kProjected) {
      return InvalidFlag("value-weight", "traces hold no output projection; norm needs none");
    }
    if (auto made = MakeScorer(scorer); !made.ok()) return InvalidFlag("scorer", made.status().message());
    for (const std::string& text : f.budgets) {
      auto budget = ParseBudget(f, text);
      if (!budget.ok()) return budget.status();
      settings.push_back({scorer, *budget, f.keep, text, f.repeats});
    }
  }
  return settings;
}

struct Report {
  DatasetInfo data;
  int64_t scored = 0;
  int kv_heads = 0;
  std::string backend, simd_target, heads;
  double bandwidth_gb_s = 0;
  std::vector<EvictRow> rows;
  std::vector<std::optional<StreamRow>> streams;  // beside the first rows; empty: not measured
};

nlohmann::ordered_json ToJson(const EvictRow& row, const Report& report) {
  return {{"scorer", row.scorer},
          {"budget", row.budget},
          {"retained_attention_mass", row.retained_attention_mass},
          {"retained_attention_mass_worst_head", row.worst_head},
          {"overlap_with_attention_top", row.overlap_with_attention_top},
          {"us_per_token", row.us_per_token},
          {"us_per_token_first", row.us_per_token_first},
          {"read_bandwidth_share", row.gb_s / report.bandwidth_gb_s},
          {"read_bandwidth_share_paired", row.paired_share},
          {"kept", row.kept}};
}

nlohmann::ordered_json ToJson(const StreamRow& row) {
  return {{"interval", row.interval},       {"most_tokens", row.most_tokens}, {"peak_bytes", row.peak_bytes},
          {"whole_bytes", row.whole_bytes}, {"step_us", row.step_us},         {"eviction_us", row.eviction_us}};
}

nlohmann::ordered_json ToJson(const Report& report) {
  nlohmann::ordered_json json = ToJson(report.rows.front(), report);
  json["source"] = report.data.source;
  json["synthetic"] = report.data.synthetic;
  json["num_tokens"] = report.scored;
  json["num_kv_heads"] = report.kv_heads;
  json["head_dim"] = report.data.head_dim;
  json["dtype"] = NameOf(report.data.dtype);
  json["heads"] = report.heads;
  json["backend"] = report.backend;
  json["simd_target"] = report.simd_target;
  json["read_bandwidth_gb_s"] = report.bandwidth_gb_s;
  for (const EvictRow& row : report.rows) json["rows"].push_back(ToJson(row, report));
  for (size_t i = 0; i < report.streams.size(); ++i) {
    json["rows"][i]["stream"] = report.streams[i] ? ToJson(*report.streams[i]) : nlohmann::ordered_json();
  }
  return json;
}

// In blocks, then token by token.
std::string RenderStreams(const Report& report) {
  std::vector<std::vector<std::string>> table = {{"an index that evicts by itself", "budget", "every", "most tokens",
                                                  "peak MiB", "MiB without", "us a step", "us an eviction"}};
  constexpr double kMiB = 1 << 20;
  for (size_t i = 0; i < report.streams.size(); ++i) {
    const EvictRow& row = report.rows[i];
    if (!report.streams[i]) {
      table.push_back({row.scorer, row.budget, "-", "-", "-", "-", "-", "-"});
      continue;
    }
    const StreamRow& stream = *report.streams[i];
    table.push_back({row.scorer, row.budget, absl::StrCat(stream.interval), absl::StrCat(stream.most_tokens),
                     absl::StrFormat("%.1f", static_cast<double>(stream.peak_bytes) / kMiB),
                     absl::StrFormat("%.1f", static_cast<double>(stream.whole_bytes) / kMiB),
                     absl::StrFormat("%.2f", stream.step_us), absl::StrFormat("%.0f", stream.eviction_us)});
  }
  return RenderTable(table) + "tokens, steps and evictions: a head; MiB: a layer's keys and codes, at the peak\n";
}

// The best scorer of the last budget, beside what no choice of as many tokens exceeds.
std::string Verdict(const Report& report) {
  const EvictRow *best = nullptr, *oracle = nullptr;
  for (const EvictRow& row : report.rows) {
    if (row.budget != report.rows.back().budget) continue;
    const EvictRow*& one = row.scorer == "oracle" ? oracle : best;
    if (one == nullptr || row.retained_attention_mass > one->retained_attention_mass) one = &row;
  }
  if (best == nullptr || oracle == nullptr) return "";
  return absl::StrFormat(
      "\nbudget %s: %s keeps most of attention, %.3f; no choice of as many tokens keeps more than %.3f\n", best->budget,
      best->scorer, best->retained_attention_mass, oracle->retained_attention_mass);
}

std::string RenderText(const Report& report) {
  std::string text = absl::StrFormat(
      "%s%s: %d tokens a head scored, %d KV heads%s, head_dim %d, %s; budgets %s\n%s, %s; one core reads %.1f GB/s\n\n",
      report.data.synthetic ? "synthetic: " : "", report.data.source, report.scored, report.kv_heads,
      report.data.synthetic ? "" : " a layer", report.data.head_dim, NameOf(report.data.dtype), report.heads,
      report.backend, report.simd_target, report.bandwidth_gb_s);
  std::vector<std::vector<std::string>> table = {{"scorer", "budget", "kept", "attention kept", "worst head", "overlap",
                                                  "ns a token", "of bandwidth", "paired", "with sums first"}};
  for (const EvictRow& row : report.rows) {
    const bool timed = row.us_per_token > 0;
    table.push_back({row.scorer, row.budget, absl::StrFormat("%.0f", row.kept),
                     absl::StrFormat("%.3f", row.retained_attention_mass), absl::StrFormat("%.3f", row.worst_head),
                     absl::StrFormat("%.3f", row.overlap_with_attention_top),
                     timed ? absl::StrFormat("%.1f", row.us_per_token * 1e3) : "-",
                     timed ? absl::StrFormat("%.2f", row.gb_s / report.bandwidth_gb_s) : "-",
                     timed ? absl::StrFormat("%.2f", row.paired_share) : "-",
                     timed ? absl::StrFormat("%.1f", row.us_per_token_first * 1e3) : "-"});
  }
  text += RenderTable(table) + Verdict(report);
  return report.streams.empty() ? text : text + "\n" + RenderStreams(report);
}

Plot MakePlot(const Report& report) {
  Plot plot;
  plot.title = "Attention of later queries that eviction keeps";
  plot.subtitle = absl::StrCat(report.data.synthetic ? "synthetic: " : "", report.data.source);
  plot.x_label = "tokens kept, share";
  plot.y_label = "attention mass kept";
  for (const EvictRow& row : report.rows) {
    auto series =
        std::find_if(plot.series.begin(), plot.series.end(), [&](const Series& s) { return s.name == row.scorer; });
    if (series == plot.series.end()) series = plot.series.insert(series, Series{row.scorer, {}});
    series->points.emplace_back(row.kept / static_cast<double>(report.scored), row.retained_attention_mass);
  }
  for (Series& series : plot.series) std::sort(series.points.begin(), series.points.end());
  return plot;
}

absl::Status Print(const EvictFlags& f, const Report& report) {
  std::cout << (f.output == "json" ? ToJson(report).dump(2) + "\n" : RenderText(report)) << std::flush;
  if (!std::cout) return absl::UnavailableError("cannot write to standard output");
  return WritePlot(MakePlot(report), f.plot);
}

absl::StatusOr<std::shared_ptr<const Profile>> MaybeProfile(const std::string& path) {
  if (path.empty()) return nullptr;
  auto profile = ReadProfile(path);
  if (!profile.ok())
    return absl::Status(profile.status().code(), absl::StrCat("--profile: ", profile.status().message()));
  return std::make_shared<const Profile>(*std::move(profile));
}

absl::Status Run(EvictFlags f) {
  if (f.threads < 0) return InvalidFlag("threads", "at least 0 (one a core)");
  if (f.interval < 0) return InvalidFlag("interval", "at least 0 (not measured)");
  if (f.repeats < 1) return InvalidFlag("repeats", absl::StrCat(f.repeats, " is fewer than 1"));
  if (f.kv_heads < 1) return InvalidFlag("kv-heads", "at least 1");
  if (f.kv_heads > 1 && !f.data.trace.empty()) return InvalidFlag("kv-heads", "a trace has its own");
  if (absl::Status s = Validate(f.keep); !s.ok()) return s;
  if (absl::Status s = CheckPlotPath(f.plot); !s.ok()) return s;
  f.data.values = !f.data.trace.empty();
  f.data.sink = 0;
  // Synthetic: half of the queries are shown to scorers, more than any looks at by default.
  if (!f.data.synthetic.empty()) f.data.num_queries = 256;
  auto settings = Settings(f, f.data.values);
  if (!settings.ok()) return settings.status();
  auto profile = MaybeProfile(f.profile);
  if (!profile.ok()) return profile.status();
  const Profile* model = profile->get();

  Report report;
  auto layers = LoadEvictLayers(f.data, f.kv_heads, model, &report.data);
  if (!layers.ok()) return layers.status();
  auto rope = ParseRope(report.data.rope_json, report.data.head_dim, report.data.rope_style, report.data.num_tokens);
  if (!rope.ok()) return rope.status();
  *profile = InLayout(*profile, *rope);
  model = profile->get();
  auto backend = MakeCpuBackend(f.threads);
  MemoryProbe probe(backend.get());
  if (!probe.ok()) return absl::ResourceExhaustedError("not enough memory to measure the read bandwidth");
  probe.Measure(8);

  const int num_layers = model != nullptr ? model->num_layers() : report.data.layers.back() + 1;
  Progress progress(static_cast<int64_t>(settings->size()));
  for (const EvictSetting& setting : *settings) {
    auto row = MeasureEviction(*layers, num_layers, setting, *rope, model, backend.get(), &probe);
    if (!row.ok()) return row.status();
    report.rows.push_back(*std::move(row));
    if (f.interval > 0) {
      auto stream = MeasureStream(*layers->front(), setting, f.interval, backend.get());
      if (!stream.ok()) return stream.status();
      report.streams.push_back(*std::move(stream));
    }
    progress.Step(absl::StrCat(setting.scorer.name, " ", setting.budget_name));
  }
  for (const std::string& text : f.budgets) {
    for (const EvictSetting& setting : *settings) {
      if (setting.budget_name != text) continue;
      report.rows.push_back(MeasureOracle(*layers, setting));
      break;
    }
  }
  report.scored = layers->front()->scored;
  report.kv_heads = static_cast<int>(layers->front()->heads.size());
  report.heads = f.heads;
  report.backend = backend->name();
  report.simd_target = backend->simd_target();
  report.bandwidth_gb_s = probe.best_gb_s();
  return Print(f, report);
}

}  // namespace

void AddEvictCommand(CLI::App* app, std::function<absl::Status()>* run) {
  CLI::App* command = app->add_subcommand("evict", kEvictDescription);
  auto flags = std::make_shared<EvictFlags>();
  AddFlags(command, flags.get());
  command->callback([flags, run] { *run = [flags] { return Run(*flags); }; });
}

}  // namespace seine::bench
