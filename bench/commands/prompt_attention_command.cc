// See prompt_attention_command.h.
#include "bench/commands/prompt_attention_command.h"

#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "bench/commands/invalid_flag.h"
#include "bench/measures/prompt_attention.h"
#include "bench/report/table.h"
#include "kernels/cpu/targets.h"

namespace seine::bench {
namespace {

constexpr char kPromptAttentionDescription[] =
    "Attention of a prompt's last micro-batch: error and time.\n"
    "\n"
    "Every recorded query attends all keys before it: exactly, and over runs of 8 keys that a block of some 384 query "
    "rows chooses. `sampled` lets every so-manieth token attend everything, and takes the fewest runs of which a token "
    "that did not choose keeps a share; `means` takes as many by the blocks' mean queries and the runs' mean keys. The "
    "trace must hold values, and the queries of its last tokens (seine_kv.trace).\n"
    "\n"
    "  seine-bench prompt-attention --trace bench/data/smollm2-135m-kjv-8k.safetensors \\\n"
    "    --mass .9,.95,.98 --sample 4,8,16 --most .3,.5";

struct PromptAttentionFlags {
  PromptAttentionOptions options;
  std::string output = "table";
};

void AddFlags(CLI::App* app, PromptAttentionFlags* f) {
  PromptAttentionOptions& o = f->options;
  o.data.sink = 0, o.data.local = 1;  // every recorded query is asked
  app->add_option("--trace", o.data.trace, "safetensors file of a recorded model")->required();
  app->add_option("--layers", o.data.layers, "of the trace; all that it holds if absent")->delimiter(',');
  app->add_option("--mass", o.masses, "shares of the sampled rows' attention that are kept; several")
      ->delimiter(',')
      ->capture_default_str();
  app->add_option("--sample", o.samples, "every so-manieth token of a block is sampled; several")
      ->delimiter(',')
      ->capture_default_str();
  app->add_option("--most", o.most, "share of the runs; a block that needs more is exact; several")
      ->delimiter(',')
      ->capture_default_str();
  app->add_option("--sink", o.sink, "first tokens that are always attended")->capture_default_str();
  app->add_option("--local", o.local, "last tokens before a block that are always attended")->capture_default_str();
  app->add_option("--repeats", o.repeats, "of each timing; the fastest counts")->capture_default_str();
  app->add_option("-o,--output", f->output, "table or json")
      ->check(CLI::IsMember({"table", "json"}))
      ->capture_default_str();
}

nlohmann::ordered_json ToJson(const PromptAttentionResult& result) {
  nlohmann::ordered_json json = {{"source", result.data.source}, {"num_tokens", result.data.num_tokens},
                                 {"queries", result.tokens},     {"heads", result.data.num_heads()},
                                 {"group", result.data.group},   {"head_dim", result.data.head_dim},
                                 {"simd", cpu::TargetName()}};
  for (const PromptAttentionRow& row : result.rows) {
    json["rows"].push_back({{"method", row.method},
                            {"mass", row.mass},
                            {"sample", row.sample},
                            {"most", row.most},
                            {"taken", row.taken},
                            {"exact_blocks", row.exact_blocks},
                            {"error", row.error},
                            {"error_worst_head", row.worst_head},
                            {"ms", row.ms}});
  }
  return json;
}

// Names the sampled row that errs least, beside exact attention.
std::string Verdict(const PromptAttentionResult& result) {
  const PromptAttentionRow* best = nullptr;
  for (const PromptAttentionRow& row : result.rows) {
    if (row.ms > 0 && &row != &result.rows[0] && (best == nullptr || row.error < best->error)) best = &row;
  }
  if (best == nullptr) return "";
  return absl::StrFormat(
      "\nat a kept share of %.3f answers err by %.4f over %.0f%% of the keys, in %.2f of exact attention's time\n",
      best->mass, best->error, 100 * best->taken, best->ms / result.rows[0].ms);
}

std::string RenderText(const PromptAttentionResult& result) {
  std::vector<std::vector<std::string>> table = {
      {"method", "mass", "sample", "most", "taken", "exact blocks", "error", "worst head", "ms", "exact / it"}};
  for (const PromptAttentionRow& row : result.rows) {
    const bool timed = row.ms > 0;
    table.push_back({row.method, absl::StrFormat("%.3f", row.mass), absl::StrCat(row.sample),
                     absl::StrFormat("%.2f", row.most), absl::StrFormat("%.4f", row.taken),
                     absl::StrFormat("%.3f", row.exact_blocks), absl::StrFormat("%.4f", row.error),
                     absl::StrFormat("%.4f", row.worst_head), timed ? absl::StrFormat("%.2f", row.ms) : "-",
                     timed ? absl::StrFormat("%.2f", result.rows[0].ms / row.ms) : "-"});
  }
  return absl::StrCat(result.data.source, ": ", result.tokens, " queries behind ",
                      result.data.num_tokens - result.tokens, " tokens, ", result.data.num_heads(), " KV heads of ",
                      result.data.group, " query heads, head_dim ", result.data.head_dim, ", ", cpu::TargetName(),
                      ", one thread\n\n", RenderTable(table), Verdict(result));
}

absl::Status Run(const PromptAttentionFlags& f) {
  const PromptAttentionOptions& o = f.options;
  for (const double mass : o.masses) {
    if (!(mass > 0 && mass < 1)) return InvalidFlag("mass", absl::StrCat(mass, " is not in (0, 1)"));
  }
  for (const double most : o.most) {
    if (!(most >= 0 && most <= 1)) return InvalidFlag("most", absl::StrCat(most, " is not in [0, 1]"));
  }
  for (const int sample : o.samples) {
    if (sample < 1) return InvalidFlag("sample", absl::StrCat(sample, " is not at least 1"));
  }
  if (o.sink < 0 || o.local < 0) return InvalidFlag(o.sink < 0 ? "sink" : "local", "must not be negative");
  if (o.repeats < 1) return InvalidFlag("repeats", "at least 1");
  const auto result = MeasurePromptAttention(o);
  if (!result.ok()) return result.status();
  std::cout << (f.output == "json" ? ToJson(*result).dump(2) + "\n" : RenderText(*result)) << std::flush;
  return std::cout ? absl::OkStatus() : absl::UnavailableError("cannot write to standard output");
}

}  // namespace

void AddPromptAttentionCommand(CLI::App* app, std::function<absl::Status()>* run) {
  CLI::App* command = app->add_subcommand("prompt-attention", kPromptAttentionDescription);
  auto flags = std::make_shared<PromptAttentionFlags>();
  AddFlags(command, flags.get());
  command->callback([flags, run] { *run = [flags] { return Run(*flags); }; });
}

}  // namespace seine::bench
