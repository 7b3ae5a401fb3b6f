// See prompt_command.h.
#include "bench/commands/prompt_command.h"

#include <algorithm>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "bench/commands/invalid_flag.h"
#include "bench/measures/prompt.h"
#include "bench/report/table.h"

namespace seine::bench {
namespace {

constexpr char kPromptDescription[] =
    "Recall while a prompt grows, with the balanced code.\n"
    "\n"
    "The trace is appended in steps, as engines append a prompt, and asked at every power of two of its length, right "
    "after the append. Beside it stands an index that got the same tokens in one append. The code's transform is made "
    "for the positions that a layer has reached, so a prompt in steps shows whether it is renewed in time, and what "
    "that costs a key. The trace must hold queries at all lengths (seine_kv.trace --queries-last).\n"
    "\n"
    "  seine-bench prompt --trace long.safetensors \\\n"
    "    --profile bench/data/smollm2-135m.profile.safetensors --step 512,4096";

struct PromptFlags {
  PromptOptions options;
  std::string profile, output = "table";
  int threads = 1;
};

void AddFlags(CLI::App* app, PromptFlags* f) {
  PromptOptions& o = f->options;
  o.steps = {512, 4096};
  o.data.num_queries = 32;
  app->add_option("--trace", o.data.trace, "safetensors file of a recorded model")->required();
  app->add_option("--profile", f->profile, "the model's profile")->required();
  app->add_option("--layers", o.data.layers, "of the trace; all that it holds if absent")->delimiter(',');
  app->add_option("--step", o.steps, "tokens an append; several")->delimiter(',')->capture_default_str();
  app->add_option("--length", o.lengths, "tokens at which it is asked, ascending; absent: every power of two")
      ->delimiter(',');
  app->add_option("--horizon", o.horizon, "positions ahead that queries are expected at")->capture_default_str();
  app->add_option("--num-queries", o.data.num_queries, "positions asked at each length")->capture_default_str();
  app->add_option("--top-k", o.top_k, "keys wanted a query")->capture_default_str();
  app->add_option("--candidate-fraction,--beta", o.beta, "share of the keys kept as candidates")->capture_default_str();
  app->add_option("--rescore-k,--refine", o.refine, "survivors of the rerank scored exactly")->capture_default_str();
  app->add_option("--sink", o.data.sink, "first tokens left out")->capture_default_str();
  app->add_option("--local", o.data.local, "last tokens left out; they bring the queries")->capture_default_str();
  app->add_option("--threads", f->threads, "of the backend; 0: one a core")->capture_default_str();
  app->add_option("-o,--output", f->output, "table or json")
      ->check(CLI::IsMember({"table", "json"}))
      ->capture_default_str();
}

nlohmann::ordered_json ToJson(const PromptCost& cost) {
  return {{"cpu_ns_per_key", cost.cpu_ns}, {"first_answer_us", cost.first_us}, {"times_encoded", cost.encoded_keys}};
}

nlohmann::ordered_json ToJson(const PromptFlags& f, const PromptResult& result) {
  nlohmann::ordered_json json = {{"source", result.data.source}, {"horizon", f.options.horizon},
                                 {"top_k", f.options.top_k},     {"beta", f.options.beta},
                                 {"refine", f.options.refine},   {"one_append", ToJson(result.cost_of_one)}};
  for (size_t i = 0; i < f.options.steps.size(); ++i) {
    json["steps"].push_back(ToJson(result.cost_in_steps[i]));
    json["steps"].back()["step"] = f.options.steps[i];
  }
  for (const PromptRow& row : result.rows) {
    nlohmann::ordered_json one = {{"num_tokens", row.tokens},
                                  {"recall_at_k", row.one_append},
                                  {"recall_at_k_worst_head", row.one_append_worst_head}};
    for (size_t i = 0; i < f.options.steps.size(); ++i) {
      one["in_steps"].push_back({{"step", f.options.steps[i]},
                                 {"recall_at_k", row.in_steps[i]},
                                 {"recall_at_k_worst_head", row.in_steps_worst_head[i]}});
    }
    json["rows"].push_back(one);
  }
  return json;
}

std::string Verdict(const PromptFlags& f, const PromptResult& result) {
  if (result.rows.empty()) return "";
  const PromptRow& last = result.rows.back();
  std::string text = absl::StrFormat("\n%d tokens in one append: %.1f%% of the exact top %d are found", last.tokens,
                                     100 * last.one_append, f.options.top_k);
  const auto least = std::min_element(last.in_steps.begin(), last.in_steps.end());
  if (least != last.in_steps.end()) {
    absl::StrAppendFormat(&text, "; in steps of %d: %.1f%%", f.options.steps[least - last.in_steps.begin()],
                          100 * *least);
  }
  return text + "\n";
}

std::string RenderText(const PromptFlags& f, const PromptResult& result) {
  std::vector<std::vector<std::string>> table = {
      {absl::StrCat("recall@", f.options.top_k), "one append", "worst head"}};
  for (const int64_t step : f.options.steps) {
    table.front().push_back(absl::StrCat("steps of ", step));
    table.front().push_back("worst head");
  }
  for (const PromptRow& row : result.rows) {
    table.push_back({absl::StrCat(row.tokens, " tokens"), absl::StrFormat("%.4f", row.one_append),
                     absl::StrFormat("%.4f", row.one_append_worst_head)});
    for (size_t i = 0; i < row.in_steps.size(); ++i) {
      table.back().push_back(absl::StrFormat("%.4f", row.in_steps[i]));
      table.back().push_back(absl::StrFormat("%.4f", row.in_steps_worst_head[i]));
    }
  }
  std::vector<std::vector<std::string>> costs = {{"appended", "CPU ns a key", "times encoded", "first answer us"}};
  const auto add = [&costs](const std::string& name, const PromptCost& cost) {
    costs.push_back({name, absl::StrFormat("%.0f", cost.cpu_ns), absl::StrFormat("%.2f", cost.encoded_keys),
                     absl::StrFormat("%.0f", cost.first_us)});
  };
  add("in one", result.cost_of_one);
  for (size_t i = 0; i < f.options.steps.size(); ++i) {
    add(absl::StrCat("in steps of ", f.options.steps[i]), result.cost_in_steps[i]);
  }
  return absl::StrCat(result.data.source, ", horizon ", f.options.horizon, ", beta ", f.options.beta, ", refine ",
                      f.options.refine, "\n\n", RenderTable(table), "\n", RenderTable(costs),
                      "keys: of one head; the first answer is asked for when all is appended\n", Verdict(f, result));
}

absl::Status Run(PromptFlags f) {
  if (f.threads < 0) return InvalidFlag("threads", "at least 0 (one a core)");
  if (f.options.steps.empty()) return InvalidFlag("step", "at least one");
  for (const int64_t step : f.options.steps) {
    if (step < 1) return InvalidFlag("step", absl::StrCat(step, " is not at least 1"));
  }
  if (!std::is_sorted(f.options.lengths.begin(), f.options.lengths.end()))
    return InvalidFlag("length", "not ascending");
  auto profile = ReadProfile(f.profile);
  if (!profile.ok()) {
    return absl::Status(profile.status().code(), absl::StrCat("--profile: ", profile.status().message()));
  }
  f.options.profile = std::make_shared<const Profile>(*std::move(profile));
  const auto backend = MakeCpuBackend(f.threads);
  const auto result = MeasurePrompt(f.options, backend.get());
  if (!result.ok()) return result.status();
  std::cout << (f.output == "json" ? ToJson(f, *result).dump(2) + "\n" : RenderText(f, *result)) << std::flush;
  return std::cout ? absl::OkStatus() : absl::UnavailableError("cannot write to standard output");
}

}  // namespace

void AddPromptCommand(CLI::App* app, std::function<absl::Status()>* run) {
  CLI::App* command = app->add_subcommand("prompt", kPromptDescription);
  auto flags = std::make_shared<PromptFlags>();
  AddFlags(command, flags.get());
  command->callback([flags, run] { *run = [flags] { return Run(*flags); }; });
}

}  // namespace seine::bench
