#include "client/cli/flags/eviction_flags.h"

#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "client/cli/base/exit_code.h"
#include "profile/filters.h"
#include "profile/scorer_list.h"
#include "profile/spelling.h"

namespace seine::cli {
namespace {

// Which scorers have an option, what it says, and its default; of an enum that is its first value.
std::string OptionHelp(absl::string_view type, absl::string_view name, absl::string_view usual,
                       absl::string_view help) {
  const std::string values = OneOf(type);
  if (!values.empty()) {
    return absl::StrCat(ScorersWith(name), ": ", values, " (default: ", SpellValue(type, 1), ")");
  }
  double number = 0;
  const std::string text = absl::SimpleAtod(usual, &number) ? absl::StrCat(number) : std::string(usual);
  return absl::StrCat(ScorersWith(name), ": ", help, " (default: ", text, ")");
}

std::string HelpOfScorerField(const std::string& field) {
#define SEINE_SCORER_HELP(Type, name, usual, least, most, help) \
  if (field == #name) return OptionHelp(#Type, #name, #usual, help);
  SEINE_FOR_EACH_SCORER_OPTION(SEINE_SCORER_HELP)
#undef SEINE_SCORER_HELP
  return "";
}

// The name of a file of the server's, or that a call gave them.
Json FiltersField(const v1::EvictionSettings& eviction) {
  if (!eviction.filters_file().empty()) return eviction.filters_file();
  return eviction.has_filters() ? Json("given") : Json();
}

void AddScorerFields(const v1::ScorerSettings& scorer, Json* json) {
  const ScorerEntry* const entry = FindScorer(scorer.name());
  if (entry == nullptr) return;  // of a newer server
  Json all;
  AddFields(*v1::ScorerSettings::descriptor(), &scorer, "", &all);
  for (auto& [name, value] : all.items()) {
    if (entry->Has(name)) (*json)["evict_" + name] = std::move(value);
  }
}

}  // namespace

void AddScorerFlags(const FlagGroup& group, const std::function<v1::ScorerSettings*()>& scorer) {
  AddFieldFlags(group, *v1::ScorerSettings::descriptor(), scorer, HelpOfScorerField);
}

// Each flag but the budget's needs it: without one the index does not evict by itself.
void AddEvictionFlags(CLI::App* create, v1::IndexSpec* spec, std::string* filters) {
  const auto eviction = [spec] { return spec->mutable_eviction(); };
  FlagGroup group{create, "--evict-", "Eviction by the index itself"};
  CLI::Option* const budget = create->add_option_function<int64_t>(
      "--evict-budget", [=](int64_t tokens) { eviction()->mutable_budget()->set_tokens(tokens); },
      "Tokens a head that a layer is cut back to (default: nothing is evicted but by seine evict)");
  group.Join(budget);
  group.needs = budget;
  group.Join(create->add_option_function<std::string>(
      "--evict-scorer", [=](const std::string& name) { eviction()->mutable_scorer()->set_name(name); },
      ScorerChoice() +
          "; snapkv, tova, h2o and expected_attention look at the queries that are asked and that appends carry "
          "(expected_attention at those of a profile, if there is one) (default: keydiff)"));
  AddFieldFlags(group, *v1::Budget::descriptor(), [=] { return eviction()->mutable_budget(); });
  AddFieldFlags(group, *v1::Keep::descriptor(), [=] { return eviction()->mutable_keep(); });
  AddFieldFlags(group, *v1::EvictionSettings::descriptor(), eviction);
  group.Join(create->add_option("--evict-filters", *filters,
                                "qfilters, in place of a profile: a model's directions as published, safetensors with "
                                "q_filters [layers, KV heads, head_dim], negated"));
  AddScorerFlags(group, [=] { return eviction()->mutable_scorer(); });
}

absl::Status ReadEvictFilters(const std::string& path, v1::IndexSpec* spec) {
  if (path.empty()) return absl::OkStatus();
  const v1::Geometry& g = spec->geometry();
  auto filters = ReadFilters(path, /*negated=*/true, g.num_layers(), g.num_kv_heads(), g.head_dim());
  if (!filters.ok()) return FileError(filters.status());
  v1::Tensor* const out = spec->mutable_eviction()->mutable_filters();
  out->set_dtype(v1::D_TYPE_FLOAT32);
  for (const int dim : {g.num_layers(), g.num_kv_heads(), g.head_dim()}) out->add_shape(dim);
  for (const Filters& layer : *filters) {
    out->mutable_raw()->append(reinterpret_cast<const char*>(layer.data()), layer.size() * sizeof(float));
  }
  return absl::OkStatus();
}

void AddEvictionFields(const v1::EvictionSettings* eviction, Json* json) {
  const bool is = eviction != nullptr;
  (*json)["evict_scorer"] = is ? Json(eviction->scorer().name()) : Json();
  (*json)["evict_budget"] = is ? Json(eviction->budget().tokens()) : Json();
  Json budget;
  AddFields(*v1::Budget::descriptor(), is ? &eviction->budget() : nullptr, "evict_", &budget);
  for (const char* name : {"evict_heads", "evict_safeguard", "evict_pyramid_ratio"}) (*json)[name] = budget[name];
  AddFields(*v1::Keep::descriptor(), is ? &eviction->keep() : nullptr, "evict_", json);
  AddFields(*v1::EvictionSettings::descriptor(), eviction, "evict_", json);
  json->erase("evict_filters_file");
  (*json)["evict_filters"] = is ? FiltersField(*eviction) : Json();
  if (is) AddScorerFields(eviction->scorer(), json);
}

}  // namespace seine::cli
