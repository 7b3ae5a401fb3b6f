#include "client/cli/flags/eviction_flags.h"

#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "client/cli/base/exit_code.h"
#include "client/cli/base/names.h"
#include "profile/filters.h"
#include "profile/scorer_list.h"
#include "profile/spelling.h"

namespace seine::cli {
namespace {

std::string Spelt(bool value) { return value ? "true" : "false"; }
std::string Spelt(int value) { return absl::StrCat(value); }
std::string Spelt(double value) { return absl::StrCat(value); }

// A flag for an option of scorers: which have it, what it says, and its default.
template <typename Usual, typename Field>
void AddScorerFlag(const FlagGroup& group, const char* type, absl::string_view name, const char* help, Usual usual,
                   const std::function<client::Scorer*()>& scorer, Field client::Scorer::*field) {
  const std::string flag = group.prefix + absl::StrReplaceAll(name, {{"_", "-"}});
  const std::string owners = absl::StrCat(ScorersWith(name), ": ");
  if constexpr (std::is_enum_v<Usual>) {
    const NameTable<Field> table{type};
    const std::string text = absl::StrCat(owners, ListValues(type), " (default: ", NameOf(table, usual), ")");
    const auto set = [=](int value) { scorer()->*field = static_cast<Field>(value); };
    group.Join(group.command->add_option_function<int>(flag, set, text)->transform(Names(table))->type_name("ENUM"));
  } else {
    const std::string text = absl::StrCat(owners, help, " (default: ", Spelt(usual), ")");
    group.Join(group.command->add_option_function<Usual>(
        flag, [=](const Usual& value) { scorer()->*field = value; }, text));
  }
}

template <typename T>
Json Field(const char*, const std::optional<T>& value) {
  return value ? Json(*value) : Json();
}
template <typename Enum, std::enable_if_t<std::is_enum_v<Enum>, bool> = true>
Json Field(const char* type, Enum value) {
  return NameOf(NameTable<Enum>{type}, value);
}

// The name of a file of the server's, or that a call gave them.
Json FiltersField(const client::Eviction& eviction) {
  if (!eviction.filters_file.empty()) return eviction.filters_file;
  return eviction.filters.empty() ? Json() : Json("given");
}

void AddScorerFields(const client::Scorer& scorer, Json* json) {
  const ScorerEntry* const entry = FindScorer(scorer.name);
  if (entry == nullptr) return;  // of a newer server
#define SEINE_SCORER_JSON(Type, name, ...) \
  if (entry->Has(#name)) (*json)["evict_" #name] = Field(#Type, scorer.name);
  SEINE_FOR_EACH_SCORER_OPTION(SEINE_SCORER_JSON)
#undef SEINE_SCORER_JSON
}

}  // namespace

void FlagGroup::Join(CLI::Option* option) const {
  if (!name.empty()) option->group(name);
  if (needs != nullptr) option->needs(needs);
}

void AddScorerFlags(const FlagGroup& group, const std::function<client::Scorer*()>& scorer) {
  using client::Anchor, client::Similarity, client::Metric, client::ValueWeight;
#define SEINE_SCORER_FLAG(Type, name, usual, least, most, help) \
  AddScorerFlag<Type>(group, #Type, #name, help, usual, scorer, &client::Scorer::name);
  SEINE_FOR_EACH_SCORER_OPTION(SEINE_SCORER_FLAG)
#undef SEINE_SCORER_FLAG
}

void AddBudgetFlags(const FlagGroup& group, const std::function<client::Budget*()>& budget) {
  const auto add = [&](const char* name) { return group.prefix + name; };
  CLI::App* const command = group.command;
  group.Join(command
                 ->add_option_function<int>(
                     add("heads"), [=](int v) { budget()->heads = static_cast<client::HeadBudget>(v); },
                     "uniform, adaptive or pyramid (default: uniform)")
                 ->transform(Names(kHeadBudgetNames))
                 ->type_name("ENUM"));
  group.Join(command->add_option_function<double>(
      add("safeguard"), [=](double v) { budget()->safeguard = v; },
      "adaptive: share of its budget that a head is sure of (default: 0.2)"));
  group.Join(command->add_option_function<double>(
      add("beta"), [=](double v) { budget()->beta = v; },
      "pyramid: the mean budget over the last layer's, at least 1 (default: 20)"));
}

void AddKeepFlags(const FlagGroup& group, const std::function<client::Keep*()>& keep) {
  const auto add = [&](const char* name) { return group.prefix + name; };
  CLI::App* const command = group.command;
  group.Join(command->add_option_function<int64_t>(
      add("sinks"), [=](int64_t v) { keep()->sinks = v; }, "First positions, always kept (default: 0)"));
  group.Join(command->add_option_function<int64_t>(
      add("recent"), [=](int64_t v) { keep()->recent = v; }, "Last positions, always kept (default: 0)"));
  group.Join(command->add_option_function<double>(
      add("recent-share"), [=](double v) { keep()->recent_share = v; },
      "Share of the budget for the last positions (default: 0)"));
}

// Each flag but the budget's needs it: without one the index does not evict by itself.
void AddEvictionFlags(CLI::App* create, client::IndexSpec* spec, std::string* filters) {
  const auto eviction = [spec] {
    if (!spec->eviction) spec->eviction.emplace();
    return &*spec->eviction;
  };
  FlagGroup group{create, "--evict-", "Eviction by the index itself"};
  CLI::Option* const budget = create->add_option_function<int64_t>(
      "--evict-budget", [=](int64_t tokens) { eviction()->budget.tokens = tokens; },
      "Tokens a head that a layer is cut back to (default: nothing is evicted but by seine evict)");
  group.Join(budget);
  group.needs = budget;
  const auto text = [&](const char* flag, auto set, const std::string& help) {
    group.Join(create->add_option_function<std::string>(
        flag, [=](const std::string& value) { set(eviction(), value); }, help));
  };
  text(
      "--evict-scorer", [](client::Eviction* e, const std::string& v) { e->scorer.name = v; },
      ScorerChoice() +
          "; snapkv, tova, h2o and expected_attention look at the queries that are asked and that appends carry "
          "(expected_attention at those of a profile, if there is one) (default: keydiff)");
  AddBudgetFlags(group, [=] { return &eviction()->budget; });
  group.Join(create->add_option_function<int64_t>(
      "--evict-interval", [=](int64_t v) { eviction()->interval = v; },
      "Tokens beyond the budget that are held before it is cut back (default: 128)"));
  AddKeepFlags(group, [=] { return &eviction()->keep; });
  group.Join(create->add_option_function<int>(
      "--evict-keep-queries", [=](int v) { eviction()->keep_queries = v; },
      "Last positions of a layer whose queries are kept for scorers, 4 bytes x query heads x head_dim each (default: "
      "snapkv 64, tova 1, h2o and expected_attention 128, others 0)"));
  text(
      "--evict-profile", [](client::Eviction* e, const std::string& v) { e->profile = v; },
      "qfilters, expected_attention: model profile (default: the codec's)");
  group.Join(create->add_option_function<int64_t>(
      "--evict-horizon", [=](int64_t v) { eviction()->horizon = v; },
      "qfilters from a profile: queries are expected at positions up to this (the balanced codec's --horizon, else "
      "32768)"));
  CLI::Option* const file = create->add_option("--evict-filters", *filters,
                                               "qfilters, in place of a profile: a model's directions as published, "
                                               "safetensors with q_filters [layers, KV heads, "
                                               "head_dim], negated");
  group.Join(file);
  text(
      "--evict-filters-file", [](client::Eviction* e, const std::string& v) { e->filters_file = v; },
      "The same by name on the server: NAME.filters.safetensors in its folder of profiles");
  AddScorerFlags(group, [=] { return &eviction()->scorer; });
}

absl::Status ReadEvictFilters(const std::string& path, client::IndexSpec* spec) {
  if (path.empty()) return absl::OkStatus();
  const client::Geometry& g = spec->geometry;
  auto filters = ReadFilters(path, /*negated=*/true, g.num_layers, g.num_kv_heads, g.head_dim);
  if (!filters.ok()) return FileError(filters.status());
  for (const Filters& layer : *filters) {
    spec->eviction->filters.insert(spec->eviction->filters.end(), layer.begin(), layer.end());
  }
  return absl::OkStatus();
}

void AddEvictionFields(const std::optional<client::Eviction>& eviction, Json* json) {
  for (const char* name : {"scorer", "budget", "heads", "interval", "keep_queries", "horizon", "filters"}) {
    (*json)[absl::StrCat("evict_", name)] = nullptr;
  }
  if (!eviction) return;
  const auto add = [json](const char* name, Json value) { (*json)[absl::StrCat("evict_", name)] = std::move(value); };
  add("scorer", eviction->scorer.name);
  add("budget", Field("", eviction->budget.tokens));
  add("heads", Field("HeadBudget", eviction->budget.heads));
  add("safeguard", Field("", eviction->budget.safeguard));
  add("beta", Field("", eviction->budget.beta));
  add("interval", Field("", eviction->interval));
  add("sinks", eviction->keep.sinks);
  add("recent", eviction->keep.recent);
  add("recent_share", eviction->keep.recent_share);
  add("keep_queries", Field("", eviction->keep_queries));
  add("profile", eviction->profile);
  add("horizon", Field("", eviction->horizon));
  add("filters", FiltersField(*eviction));
  AddScorerFields(eviction->scorer, json);
}

}  // namespace seine::cli
