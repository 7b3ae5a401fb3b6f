#include "service/calls/convert/eviction.h"

#include <type_traits>

#include "absl/strings/str_cat.h"
#include "google/protobuf/generated_enum_reflection.h"
#include "profile/scorer_list.h"
#include "service/calls/convert/validate.h"
#include "service/calls/convert/wire_enum.h"
#include "service/fields/error.h"

namespace seine {
namespace {

static_assert(Shifted(v1::ANCHOR_UNIT_MEAN, Anchor::kUnitMean) && Shifted(v1::ANCHOR_MEAN, Anchor::kMean) &&
              Shifted(v1::ANCHOR_MEDIAN, Anchor::kMedian) && Shifted(v1::ANCHOR_PAIRWISE, Anchor::kPairwise));
static_assert(Shifted(v1::SIMILARITY_COSINE, Similarity::kCosine) && Shifted(v1::SIMILARITY_DOT, Similarity::kDot) &&
              Shifted(v1::SIMILARITY_EUCLID, Similarity::kEuclid));
static_assert(Shifted(v1::METRIC_L2, Metric::kL2) && Shifted(v1::METRIC_L1, Metric::kL1) &&
              Shifted(v1::METRIC_LINF, Metric::kLinf));
static_assert(Shifted(v1::VALUE_WEIGHT_NONE, ValueWeight::kNone) &&
              Shifted(v1::VALUE_WEIGHT_NORM, ValueWeight::kNorm) &&
              Shifted(v1::VALUE_WEIGHT_PROJECTED, ValueWeight::kProjected));
static_assert(Shifted(v1::HEAD_BUDGET_UNIFORM, HeadBudget::kUniform) &&
              Shifted(v1::HEAD_BUDGET_ADAPTIVE, HeadBudget::kAdaptive) &&
              Shifted(v1::HEAD_BUDGET_PYRAMID, HeadBudget::kPyramid));

template <typename T>
void SetRaw(v1::DType dtype, const std::vector<T>& values, v1::Tensor* tensor) {
  tensor->set_dtype(dtype);
  tensor->clear_shape();
  tensor->add_shape(static_cast<int64_t>(values.size()));
  tensor->set_raw(values.data(), values.size() * sizeof(T));
}

void SetSquare(const std::vector<double>& values, int side, v1::Tensor* tensor) {
  SetVector(std::vector<float>(values.begin(), values.end()), tensor);
  tensor->set_shape(0, side);
  tensor->add_shape(side);
}

// An option's value: an enum's, where 0 is none, or a number's where there is one.
template <typename Get, typename Has, typename Value>
absl::Status OptionFrom(const v1::ScorerSettings& wire, const std::string& field, Get get, Has has, Value* out) {
  using Wire = decltype(get(wire));
  if constexpr (std::is_enum_v<Value>) {
    const auto is_valid = [](int value) {
      return google::protobuf::GetEnumDescriptor<Wire>()->FindValueByNumber(value) != nullptr;
    };
    return FromWire(get(wire), is_valid, field, out);
  } else {
    if (has(wire)) *out = get(wire);
    return absl::OkStatus();
  }
}

template <typename Wire, typename Value>
Wire OptionTo(Value value) {
  if constexpr (std::is_enum_v<Value>) {
    return ToWire<Wire>(value);
  } else {
    return value;
  }
}

}  // namespace

absl::Status ScorerFrom(const v1::ScorerSettings& wire, const std::string& field, ScorerConfig* scorer) {
  if (!wire.name().empty()) scorer->name = wire.name();
  absl::Status status;
#define SEINE_OPTION_FROM(Type, name, ...)                                                                           \
  status.Update(OptionFrom(                                                                                          \
      wire, field + "." #name, [](const auto& w) { return w.name(); }, [](const auto& w) { return w.has_##name(); }, \
      &scorer->name));
  SEINE_FOR_EACH_SCORER_OPTION(SEINE_OPTION_FROM)
#undef SEINE_OPTION_FROM
  return status;
}

absl::Status BudgetFrom(const v1::Budget& wire, const std::string& field, BudgetConfig* budget) {
  if (wire.size_case() == v1::Budget::kRatio && !(wire.ratio() > 0 && wire.ratio() < 1)) {
    return FieldError("OUT_OF_LIMITS", field + ".ratio", absl::StrCat(wire.ratio(), " is not in (0, 1)"));
  }
  if (wire.size_case() != v1::Budget::SIZE_NOT_SET) {
    budget->tokens = wire.tokens();
    budget->ratio = wire.ratio();
  }
  if (wire.has_safeguard()) budget->safeguard = wire.safeguard();
  if (wire.has_pyramid_ratio()) budget->pyramid_ratio = wire.pyramid_ratio();
  return FromWire(wire.heads(), v1::HeadBudget_IsValid, field + ".heads", &budget->heads);
}

absl::Status KeepFrom(const v1::Keep& wire, const std::string& field, KeepConfig* keep) {
  keep->sinks = wire.sinks();
  keep->recent = wire.recent();
  keep->recent_share = wire.recent_share();
  if (!wire.has_positions()) return absl::OkStatus();
  auto positions = PositionsView(wire.positions(), field + ".positions");
  if (!positions.ok()) return positions.status();
  keep->positions.assign(positions->begin(), positions->end());
  return absl::OkStatus();
}

namespace {

// Directions for Q-Filters, given or by name.
absl::Status FiltersFrom(const v1::EvictionSettings& wire, const std::string& field, const Geometry& geometry,
                         const Profiles& profiles, EvictionConfig* eviction) {
  eviction->filters_file = wire.filters_file();
  if (!wire.filters_file().empty()) {
    if (wire.has_filters()) {
      return FieldError("CONFLICT", field + ".filters_file", "given beside filters; one of them");
    }
    auto filters = profiles.FindFilters(wire.filters_file(), geometry, field + ".filters_file");
    if (!filters.ok()) return filters.status();
    eviction->filters = *std::move(filters);
  }
  if (!wire.has_filters()) return absl::OkStatus();
  if (geometry.num_layers < 1 || geometry.num_kv_heads < 1) return absl::OkStatus();  // which the index refuses
  std::vector<float> storage;
  auto values = FloatsView(wire.filters(), {geometry.num_layers, geometry.num_kv_heads, geometry.head_dim},
                           field + ".filters", &storage);
  if (!values.ok()) return values.status();
  const int64_t size = int64_t{geometry.num_kv_heads} * geometry.head_dim;
  for (int layer = 0; layer < geometry.num_layers; ++layer) {
    eviction->filters.emplace_back(*values + layer * size, *values + (layer + 1) * size);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status EvictionFrom(const v1::EvictionSettings& wire, const std::string& field, const Geometry& geometry,
                          Profiles* profiles, EvictionConfig* eviction) {
  if (auto s = ScorerFrom(wire.scorer(), field + ".scorer", &eviction->scorer); !s.ok()) return s;
  if (auto s = BudgetFrom(wire.budget(), field + ".budget", &eviction->budget); !s.ok()) return s;
  if (auto s = KeepFrom(wire.keep(), field + ".keep", &eviction->keep); !s.ok()) return s;
  if (wire.has_interval()) eviction->interval = wire.interval();
  if (wire.has_keep_queries()) eviction->keep_queries = wire.keep_queries();
  if (wire.has_horizon()) eviction->horizon = wire.horizon();
  if (auto s = FiltersFrom(wire, field, geometry, *profiles, eviction); !s.ok()) return s;
  eviction->profile_name = wire.profile();
  if (wire.profile().empty()) return absl::OkStatus();
  auto profile = profiles->Find(wire.profile(), field + ".profile");
  if (!profile.ok()) return profile.status();
  eviction->profile = *std::move(profile);
  return absl::OkStatus();
}

void ToProto(const EvictionConfig& eviction, const Geometry& geometry, v1::EvictionSettings* out) {
  const ScorerConfig& scorer = eviction.scorer;
  const ScorerConfig usual;
  v1::ScorerSettings* wire = out->mutable_scorer();
  wire->set_name(scorer.name);
  const ScorerEntry* const entry = FindScorer(scorer.name);
#define SEINE_OPTION_TO(Type, name, ...)                                           \
  if (entry != nullptr && (entry->HasOwn(#name) || scorer.name != usual.name)) {   \
    wire->set_##name(OptionTo<std::decay_t<decltype(wire->name())>>(scorer.name)); \
  }
  SEINE_FOR_EACH_SCORER_OPTION(SEINE_OPTION_TO)
#undef SEINE_OPTION_TO
  out->mutable_budget()->set_tokens(eviction.budget.tokens);
  out->mutable_budget()->set_heads(ToWire<v1::HeadBudget>(eviction.budget.heads));
  out->mutable_budget()->set_safeguard(eviction.budget.safeguard);
  out->mutable_budget()->set_pyramid_ratio(eviction.budget.pyramid_ratio);
  out->mutable_keep()->set_sinks(eviction.keep.sinks);
  out->mutable_keep()->set_recent(eviction.keep.recent);
  out->mutable_keep()->set_recent_share(eviction.keep.recent_share);
  out->set_interval(eviction.interval);
  out->set_profile(eviction.profile_name);
  if (eviction.keep_queries) out->set_keep_queries(*eviction.keep_queries);
  if (eviction.horizon) out->set_horizon(*eviction.horizon);
  out->set_filters_file(eviction.filters_file);
  if (eviction.filters.empty() || !eviction.filters_file.empty()) return;
  std::vector<float> filters;
  for (const Filters& layer : eviction.filters) filters.insert(filters.end(), layer.begin(), layer.end());
  SetVector(filters, out->mutable_filters());
  out->mutable_filters()->clear_shape();
  for (const int dim : {geometry.num_layers, geometry.num_kv_heads, geometry.head_dim}) {
    out->mutable_filters()->add_shape(dim);
  }
}

absl::Status ScorerInputsFrom(const v1::ScorerInputs& wire, const Geometry& geometry, ScorerInputsStorage* storage,
                              ScorerInputs* given) {
  if (wire.has_queries()) {
    auto queries = FloatsView(wire.queries(), {kAnyDim, geometry.num_q_heads, geometry.head_dim}, "given.queries",
                              &storage->queries);
    if (!queries.ok()) return queries.status();
    given->queries = *queries;
    given->num_queries = wire.queries().shape(0);
  }
  if (wire.has_filters()) {
    auto filters =
        FloatsView(wire.filters(), {geometry.num_kv_heads, geometry.head_dim}, "given.filters", &storage->filters);
    if (!filters.ok()) return filters.status();
    given->filters = *filters;
  }
  if (wire.has_output_projection()) {
    auto projection = FloatsView(wire.output_projection(), {kAnyDim, geometry.num_q_heads, geometry.head_dim},
                                 "given.output_projection", &storage->output_projection);
    if (!projection.ok()) return projection.status();
    if (wire.output_projection().shape(0) > kMaxHiddenSize) {
      return FieldError("OUT_OF_LIMITS", "given.output_projection",
                        absl::StrCat("hidden_size ", wire.output_projection().shape(0), " is above ", kMaxHiddenSize));
    }
    given->output_projection = *projection;
    given->hidden_size = static_cast<int>(wire.output_projection().shape(0));
  }
  given->softmax_scale = wire.softmax_scale();
  storage->scores.resize(wire.scores_size());
  for (int h = 0; h < wire.scores_size(); ++h) {
    auto scores = FloatsView(wire.scores(h), {kAnyDim}, absl::StrCat("given.scores[", h, "]"), &storage->scores[h]);
    if (!scores.ok()) return scores.status();
    given->scores.emplace_back(*scores, wire.scores(h).shape(0));
  }
  return absl::OkStatus();
}

void SetVector(const std::vector<int32_t>& values, v1::Tensor* tensor) { SetRaw(v1::D_TYPE_INT32, values, tensor); }
void SetVector(const std::vector<float>& values, v1::Tensor* tensor) { SetRaw(v1::D_TYPE_FLOAT32, values, tensor); }

void ToProto(const HeadDiagnosis& head, int scorers, v1::HeadDiagnosis* out) {
  out->set_tokens(head.tokens);
  out->set_two_nn(head.two_nn);
  out->set_mle(head.mle);
  out->set_pca95(head.pca95);
  out->set_cosine_mean(head.cosine_mean);
  out->set_cosine_std(head.cosine_std);
  out->set_norm_mean(head.norm_mean);
  out->set_norm_std(head.norm_std);
  out->set_dilution(head.dilution);
  SetSquare(head.overlap, scorers, out->mutable_overlap());
  SetSquare(head.correlation, scorers, out->mutable_correlation());
  out->set_attention_tokens(head.attention_tokens);
  if (head.attention_correlation.empty()) return;
  SetVector(std::vector<float>(head.attention_correlation.begin(), head.attention_correlation.end()),
            out->mutable_attention_correlation());
}

}  // namespace seine
