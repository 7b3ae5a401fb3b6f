// See ojakv_report.h.
#include "bench/commands/ojakv_report.h"

#include <algorithm>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "bench/commands/invalid_flag.h"
#include "bench/report/table.h"
#include "profile/field_error.h"

namespace seine::bench {
namespace {

using Json = nlohmann::ordered_json;

std::string Title(const std::string& id) {
  for (const OjakvArm& arm : OjakvArms()) {
    if (id == arm.id) return arm.title;
  }
  return id;
}

std::string Render(const DatasetInfo& info, const OjakvOptions& o, const std::vector<OjakvRow>& rows) {
  std::string text =
      absl::StrFormat("trace: %s: %d tokens, %d heads, head_dim %d; %d positions asked a head; full-rank %.1f%%\n\n",
                      info.source, info.num_tokens, info.num_heads(), info.head_dim, o.queries, 100 * o.full_rank);
  std::vector<std::vector<std::string>> table = {
      {"keys", "method", "ranks", "bytes", "attention", "mass kept", "updates", "blocks without queries"}};
  for (const OjakvRow& row : rows) {
    table.push_back({row.frame, Title(row.method), absl::StrCat(row.key_rank, " / ", row.value_rank),
                     absl::StrFormat("%.1f %%", 100 * row.bytes), absl::StrFormat("%.4f", row.attention_error),
                     absl::StrFormat("%.4f", row.mass), absl::StrFormat("%.0f", row.updates),
                     absl::StrFormat("%.0f", row.blocks_without_queries)});
  }
  text += RenderTable(table);
  const auto least = std::min_element(rows.begin(), rows.end(), [](const OjakvRow& a, const OjakvRow& b) {
    return a.attention_error < b.attention_error;
  });
  if (least == rows.end()) return text;
  return text + absl::StrFormat("\nleast error: %s, keys %s: attention errs by %.4f over %.1f%% of the cache's bytes\n",
                                Title(least->method), least->frame, least->attention_error, 100 * least->bytes);
}

Json ToJson(const DatasetInfo& info, const OjakvOptions& o, const std::vector<OjakvRow>& rows) {
  Json j;
  j["source"] = info.source;
  j["num_tokens"] = info.num_tokens;
  j["head_dim"] = info.head_dim;
  j["full_rank"] = o.full_rank;
  j["prompt_queries"] = o.prompt_queries;
  j["positions_asked"] = o.queries;
  j["rows"] = Json::array();
  for (const OjakvRow& row : rows) {
    j["rows"].push_back({{"frame", row.frame},
                         {"method", row.method},
                         {"key_rank", row.key_rank},
                         {"value_rank", row.value_rank},
                         {"bytes", row.bytes},
                         {"attention_error", row.attention_error},
                         {"mass", row.mass},
                         {"updates", row.updates},
                         {"blocks_without_queries", row.blocks_without_queries}});
  }
  return j;
}

}  // namespace

void AddOjakvFlags(CLI::App* app, OjakvFlags* f) {
  SubspaceConfig& s = f->asked;
  const char* group = "OjaKV's pipeline as we read it, in an index, at equal bytes (of a trace)";
  app->add_flag("--ojakv", f->run, "measures it, beside the library's; the flags below are its first row")
      ->group(group);
  std::vector<std::string> ids;
  for (const OjakvArm& arm : OjakvArms()) ids.emplace_back(arm.id);
  app->add_option("--methods", f->methods, "of its rows, by their names in the table's JSON; all if absent")
      ->delimiter(',')
      ->option_text("NAME,...")
      ->check(CLI::IsMember(ids))
      ->group(group);
  app->add_flag(
         "--absolute-rate", [&s](int64_t) { s.oja.relative = false; },
         "learning rates are the paper's eta, neither relative nor bounded")
      ->group(group);
  const auto add = [&](const char* flag, auto* value, const char* help) {
    return app->add_option(flag, *value, help)->capture_default_str()->group(group);
  };
  add("--error-threshold", &s.oja.error_threshold, "only intervals update that leave out more of their energy");
  add("--min-spacing", &s.oja.min_spacing, "tokens between such updates");
  add("--prompt-pool", &s.prompt.pool, "neighbours averaged in a prompt's own step; 0: no such step");
  add("--prompt-learning-rate", &s.prompt.learning_rate, "of that step");
  add("--full-rank-queries", &s.choice.queries, "positions whose queries choose full-rank tokens; 0: the moment does");
  add("--full-rank-pool", &s.choice.pool, "neighbours that what tokens lose is averaged over");
  add("--version-tokens", &s.version_tokens, "tokens that share a version of a basis");
  app->add_flag("--stack-queries", s.stack_queries, "bases of keys begin with queries and keys stacked")->group(group);
  app->add_option("--key-ranks", s.key_ranks, "of the trace's layers, in place of one rank")
      ->delimiter(',')
      ->group(group);
  app->add_option("--value-ranks", s.value_ranks, "of the trace's layers")->delimiter(',')->group(group);
}

absl::Status CheckOjakv(const OjakvFlags& f, int head_dim, int layers) {
  absl::Status bad = Validate(f.asked.oja);
  if (bad.ok()) bad = Validate(f.asked.prompt);
  if (bad.ok()) bad = Validate(f.asked.choice);
  if (!bad.ok()) return absl::InvalidArgumentError(absl::StrCat("--", bad.message()));
  if (f.asked.version_tokens < 1) return InvalidFlag("version-tokens", "at least 1");
  for (const auto& [flag, ranks] :
       {std::pair{"key-ranks", &f.asked.key_ranks}, std::pair{"value-ranks", &f.asked.value_ranks}}) {
    if (!ranks->empty() && static_cast<int>(ranks->size()) != layers) {
      return InvalidFlag(flag, absl::StrCat(ranks->size(), " ranks for ", layers, " layers"));
    }
    for (const int rank : *ranks) {
      if (rank < 1 || rank > head_dim) return InvalidFlag(flag, absl::StrCat(rank, " is not in [1, ", head_dim, "]"));
    }
  }
  return absl::OkStatus();
}

absl::Status RunOjakv(const Dataset& dataset, const OjakvOptions& options, bool json) {
  const auto backend = MakeCpuBackend(/*threads=*/0);
  const auto rows = MeasureOjakv(dataset, options, backend.get());
  if (!rows.ok()) return rows.status();
  if (json) {
    std::cout << ToJson(dataset.info(), options, *rows).dump(2) << std::endl;
  } else {
    std::cout << Render(dataset.info(), options, *rows) << std::flush;
  }
  return std::cout ? absl::OkStatus() : absl::UnavailableError("cannot write to standard output");
}

}  // namespace seine::bench
