// Checks of an index's eviction settings.
#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "index/config/config_check.h"
#include "profile/field_error.h"
#include "profile/profile.h"

namespace seine {

namespace {

constexpr int kMaxKeptQueries = 1 << 16;

// A pyramid's last layer has the least. Budgets of layers round so that the total is exact: it may be one less of some
// lengths than of others.
int64_t LeastBudget(const IndexConfig& config) {
  const int layers = config.geometry.num_layers;
  const BudgetConfig& budget = config.eviction->budget;
  const int64_t least = KeptTokens(budget, INT32_MAX, {.layer = layers - 1, .num_layers = layers, .length = INT32_MAX});
  if (budget.heads != HeadBudget::kPyramid || layers == 1) return least;
  const auto rounded = static_cast<int64_t>(static_cast<double>(budget.tokens) / budget.pyramid_ratio);
  return std::min(least, std::max<int64_t>(1, rounded));
}

// What must stay has to fit into every budget, or appends would meet it: recent_share of fewer tokens leaves as much or
// less room for sinks.
absl::Status CheckKeep(const IndexConfig& config) {
  const KeepConfig& keep = config.eviction->keep;
  const int64_t least = LeastBudget(config);
  const int64_t recent = std::max(keep.recent, static_cast<int64_t>(keep.recent_share * static_cast<double>(least)));
  if (keep.sinks <= least && recent <= least - keep.sinks) return absl::OkStatus();
  return WrongField("eviction", "budget.tokens", keep.sinks, " sinks and ", recent, " recent tokens leave no room in ",
                    least);
}

// The pairwise anchor compares all tokens that a head ever holds.
absl::Status CheckPairwise(const IndexConfig& config) {
  const EvictionConfig& e = *config.eviction;
  if (e.scorer.anchor != Anchor::kPairwise) return absl::OkStatus();
  const int64_t budgets = e.budget.heads == HeadBudget::kAdaptive  ? config.geometry.num_kv_heads
                          : e.budget.heads == HeadBudget::kPyramid ? 2
                                                                   : 1;  // that one head may have
  const int64_t most = std::min<int64_t>(e.budget.tokens, INT32_MAX) + e.interval;
  if (most * budgets <= kMaxPairwise) return absl::OkStatus();
  return WrongField("eviction", "scorer.anchor", "pairwise compares at most ", kMaxPairwise,
                    " tokens, and a head may hold ", most * budgets);
}

absl::Status CheckFilterHorizon(const IndexConfig& config, const Scorer& scorer) {
  const EvictionConfig& e = *config.eviction;
  if (!e.horizon) return absl::OkStatus();
  if (!scorer.needs_filters() || !e.filters.empty()) {
    return WrongField("eviction", "horizon", "given, but only qfilters from a profile has one");
  }
  if (!config.geometry.rope.stated()) return WrongField("eviction", "horizon", "given, but geometry.rope is not");
  return CheckFieldRange("eviction", "horizon", *e.horizon, kMinHorizon, kMaxHorizon);
}

absl::Status CheckEvictionProfile(const IndexConfig& config, const Scorer& scorer) {
  const EvictionConfig& e = *config.eviction;
  const Geometry& g = config.geometry;
  const bool filters = scorer.needs_filters(), uses = filters || scorer.takes_profile();
  if (!uses && (e.profile != nullptr || !e.filters.empty())) {
    return WrongField("eviction", "profile", "given, but ", e.scorer.name, " uses none");
  }
  if (e.profile != nullptr) {
    absl::Status s = seine::CheckGeometry(*e.profile, g.num_layers, g.num_q_heads, g.num_kv_heads, g.head_dim);
    if (!s.ok()) return WithField(s, "eviction.profile");
    if (absl::Status rope = CheckProfileRope(*e.profile, g); !rope.ok()) return rope;
  }
  if (e.filters.empty()) {
    if (!filters || e.profile != nullptr || config.codec.profile != nullptr) return absl::OkStatus();
    return WrongField("eviction", "profile", e.scorer.name, " needs one where no queries come with the call");
  }
  if (!filters) return WrongField("eviction", "filters", "given, but only qfilters has them");
  if (e.profile != nullptr) return WrongField("eviction", "filters", "given beside eviction.profile; one of them");
  if (static_cast<int>(e.filters.size()) != g.num_layers) {
    return WrongField("eviction", "filters", e.filters.size(), " layers where the geometry has ", g.num_layers);
  }
  for (const Filters& layer : e.filters) {
    if (!std::all_of(layer.begin(), layer.end(), [](float x) { return std::isfinite(x); })) {
      return WrongField("eviction", "filters", "layer ", &layer - e.filters.data(), " holds NaN or infinity");
    }
    if (layer.size() == static_cast<size_t>(g.num_kv_heads) * g.head_dim) continue;
    return WrongField("eviction", "filters", layer.size(), " numbers a layer where ", g.num_kv_heads, " KV heads x ",
                      g.head_dim, " are needed");
  }
  return absl::OkStatus();
}

absl::Status CheckKeptQueries(const IndexConfig& config, const Scorer& scorer) {
  const EvictionConfig& e = *config.eviction;
  const int kept = QueriesKept(config);
  if (absl::Status s = CheckFieldRange("eviction", "keep_queries", kept, 0, kMaxKeptQueries); !s.ok()) return s;
  const bool profile = scorer.takes_profile() && HasEvictionProfile(config);
  if (scorer.needs_queries() && !profile && kept == 0) {
    return WrongField("eviction", "keep_queries", "0, but ", e.scorer.name, " looks at queries",
                      scorer.takes_profile() ? " where there is no eviction.profile" : "");
  }
  if (kept < scorer.observation_window()) {
    return WrongField("eviction", "keep_queries", kept, ", but scorer.", scorer.kept_prompt_option(), " is ",
                      scorer.observation_window());
  }
  const int64_t least = LeastBudget(config);
  if (scorer.kept_prompt() <= least) return absl::OkStatus();
  return WrongField("eviction", "budget.tokens", least, " in the last layer, but ", e.scorer.name,
                    " always keeps scorer.", scorer.kept_prompt_option(), ", ", scorer.kept_prompt());
}

}  // namespace

bool HasEvictionProfile(const IndexConfig& config) {
  return config.eviction->profile != nullptr || config.codec.profile != nullptr;
}

absl::Status CheckEviction(const IndexConfig& config) {
  if (!config.eviction) return absl::OkStatus();
  const EvictionConfig& e = *config.eviction;
  if (config.kv_store == KvStore::kNone) return WrongField("", "kv_store", "eviction needs keys or keys_values");
  auto scorer = MakeScorer(e.scorer);
  if (!scorer.ok()) return InGroup(scorer.status(), "eviction");
  if ((*scorer)->needs_scores()) {
    return WrongField("eviction", "scorer.name", e.scorer.name,
                      " needs what comes with an Evict call; an index has it not");
  }
  if ((*scorer)->values_option() != nullptr && config.kv_store != KvStore::kKeysValues) {
    return WrongField("eviction", absl::StrCat("scorer.", (*scorer)->values_option()), "needs kv_store keys_values");
  }
  if (e.scorer.value_weight == ValueWeight::kProjected) {
    return WrongField("eviction", "scorer.value_weight",
                      "projected needs the output projection that comes with an Evict call; an index has norm");
  }
  if (absl::Status s = InGroup(Validate(e.budget), "eviction"); !s.ok()) return s;
  if (absl::Status s = InGroup(Validate(e.keep), "eviction"); !s.ok()) return s;
  if (e.budget.tokens == 0)
    return WrongField("eviction", "budget.tokens", "an index that evicts by itself needs a number");
  if (!e.keep.positions.empty()) return WrongField("eviction", "keep.positions", "come with an Evict call");
  if (absl::Status s = CheckKeep(config); !s.ok()) return s;
  if (absl::Status s = CheckFieldRange("eviction", "interval", e.interval, 1, INT32_MAX); !s.ok()) return s;
  return FirstError(CheckPairwise(config), CheckEvictionProfile(config, **scorer), CheckFilterHorizon(config, **scorer),
                    CheckKeptQueries(config, **scorer));
}

}  // namespace seine
