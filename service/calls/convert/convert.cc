#include "service/calls/convert/convert.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "index/config/code_bits.h"
#include "kernels/codecs/codec_traits.h"
#include "profile/profile.h"
#include "service/calls/convert/eviction.h"
#include "service/calls/convert/subspace.h"
#include "service/calls/convert/wire_enum.h"
#include "service/fields/names.h"

namespace seine {
namespace {

constexpr int64_t kUnstretched = 0;  // dynamic scaling as it is before the context outgrows the model's own

static_assert(Shifted(v1::D_TYPE_FLOAT32, DType::kFloat32) && Shifted(v1::D_TYPE_FLOAT16, DType::kFloat16) &&
              Shifted(v1::D_TYPE_BFLOAT16, DType::kBFloat16));
static_assert(Shifted(v1::CENTRE_NONE, Centre::kNone) && Shifted(v1::CENTRE_GLOBAL, Centre::kGlobal) &&
              Shifted(v1::CENTRE_WINDOW, Centre::kWindow));
static_assert(Shifted(v1::COARSE_SIGN_IP, Coarse::kSignIp) && Shifted(v1::COARSE_COLLISION, Coarse::kCollision));
static_assert(Shifted(v1::SCOPE_PER_KV_HEAD, Scope::kPerKvHead) && Shifted(v1::SCOPE_PER_Q_HEAD, Scope::kPerQHead));
static_assert(Shifted(v1::GQA_REDUCE_SOFTMAX_SUM, GqaReduce::kSoftmaxSum) &&
              Shifted(v1::GQA_REDUCE_MAX, GqaReduce::kMax) && Shifted(v1::GQA_REDUCE_MEAN, GqaReduce::kMean));
static_assert(Shifted(v1::ROPE_STYLE_HALF_SPLIT, Rope::Style::kHalfSplit) &&
              Shifted(v1::ROPE_STYLE_INTERLEAVED, Rope::Style::kInterleaved));
static_assert(Shifted(v1::KV_STORE_NONE, KvStore::kNone) && Shifted(v1::KV_STORE_KEYS, KvStore::kKeys) &&
              Shifted(v1::KV_STORE_KEYS_VALUES, KvStore::kKeysValues));
static_assert(Shifted(v1::SEARCH_MODE_INDEX, SearchMode::kIndex) &&
              Shifted(v1::SEARCH_MODE_DENSE, SearchMode::kDense) &&
              Shifted(v1::SEARCH_MODE_EXACT, SearchMode::kExact) && Shifted(v1::SEARCH_MODE_GATE, SearchMode::kGate));

absl::Status SearchFrom(const v1::RetrievalSettings& settings, absl::string_view prefix, SearchParams* search) {
  if (settings.has_top_k()) search->top_k = settings.top_k();
  if (settings.has_candidate_fraction()) search->candidate_fraction = settings.candidate_fraction();
  if (settings.has_rescore_k()) search->rescore_k = settings.rescore_k();
  if (settings.has_collision_fraction()) search->collision_fraction = settings.collision_fraction();
  if (settings.has_softmax_scale()) search->softmax_scale = settings.softmax_scale();
  const std::string path = absl::StrCat(prefix, ".retrieval.");
  if (auto s = FromWire(settings.coarse(), v1::Coarse_IsValid, path + "coarse", &search->coarse); !s.ok()) return s;
  if (auto s = FromWire(settings.scope(), v1::Scope_IsValid, path + "scope", &search->scope); !s.ok()) return s;
  return FromWire(settings.gqa_reduce(), v1::GqaReduce_IsValid, path + "gqa_reduce", &search->gqa_reduce);
}

// Frequencies of an index's own statement of RoPE. `head_dim` may be wrong still; then the index refuses it.
absl::Status RopeFrom(const v1::Rope& wire, int head_dim, const std::string& field, Rope* rope) {
  if (auto s = FromWire(wire.style(), v1::RopeStyle_IsValid, field + ".style", &rope->style); !s.ok()) return s;
  if (wire.config_json().empty()) {
    if (wire.inv_freq().empty()) return FieldError("NOT_GIVEN", field, "give inv_freq or config_json");
    if (wire.inv_freq_size() > kMaxHeadDim / 2)
      return FieldError("BAD_ROPE", field + ".inv_freq", "more than a head has");
    rope->inv_freq.assign(wire.inv_freq().begin(), wire.inv_freq().end());
    rope->rotary_dim = wire.rotary_dim() == head_dim ? 0 : wire.rotary_dim();
    return absl::OkStatus();
  }
  if (!wire.inv_freq().empty()) return FieldError("CONFLICT", field, "give inv_freq or config_json, not both");
  if (wire.rotary_dim() != 0) return FieldError("CONFLICT", field + ".rotary_dim", "given, but config_json states it");
  if (head_dim <= 0 || head_dim > kMaxHeadDim) return absl::OkStatus();
  auto parsed = ParseRope(wire.config_json(), head_dim, rope->style, kUnstretched);
  if (!parsed.ok()) return FieldError("BAD_ROPE", field + ".config_json", parsed.status().message());
  *rope = *std::move(parsed);
  return absl::OkStatus();
}

absl::Status GeometryFrom(const v1::Geometry& wire, absl::string_view prefix, Geometry* geometry) {
  geometry->num_layers = wire.num_layers();
  geometry->num_q_heads = wire.num_q_heads();
  geometry->num_kv_heads = wire.num_kv_heads();
  geometry->head_dim = wire.head_dim();
  const std::string field = absl::StrCat(prefix, ".geometry.dtype");
  if (wire.dtype() == v1::D_TYPE_UNSPECIFIED) return FieldError("UNKNOWN_DTYPE", field, "not given");
  if (wire.dtype() == v1::D_TYPE_INT32) return FieldError("UNKNOWN_DTYPE", field, "keys are of a float type");
  if (auto s = FromWire(wire.dtype(), v1::DType_IsValid, field, &geometry->dtype); !s.ok()) return s;
  if (wire.has_rope()) {
    const std::string rope = absl::StrCat(prefix, ".geometry.rope");
    if (auto s = RopeFrom(wire.rope(), wire.head_dim(), rope, &geometry->rope); !s.ok()) return s;
  }
  for (int i = 0; i < wire.layer_ropes_size(); ++i) {
    const v1::LayerRope& group = wire.layer_ropes(i);
    const std::string own = absl::StrCat(prefix, ".geometry.layer_ropes[", i, "]");
    if (!wire.has_rope()) return FieldError("CONFLICT", own, "given, but rope is not");
    Rope rope;
    if (auto s = RopeFrom(group.rope(), wire.head_dim(), own + ".rope", &rope); !s.ok()) return s;
    for (const int layer : group.layers()) {
      if (const int layers = std::min(wire.num_layers(), kMaxLayers); layer < 0 || layer >= layers) {
        return FieldError("BAD_ROPE", own + ".layers", absl::StrCat("layer ", layer, " is not in [0, ", layers, ")"));
      }
      if (geometry->layer_ropes.emplace(layer, rope).second) continue;
      return FieldError("CONFLICT", own + ".layers", absl::StrCat("layer ", layer, " is stated twice"));
    }
  }
  return absl::OkStatus();
}

// The profile of an index that names none: that of its model, unless the index asks for what such a codec does not do.
std::string ProfileOf(const v1::IndexSpec& spec, const IndexConfig& config, const Profiles& profiles) {
  if (!spec.codec().profile().empty()) return spec.codec().profile();
  const CodecTraits* named = FindCodec(spec.codec().name());
  if ((named != nullptr && !named->needs_profile) || spec.model().empty()) return "";
  const CodecTraits& wanted = named != nullptr ? *named : DefaultCodec(/*with_profile=*/true);
  if (!wanted.Supports(config.codec.centre) || !wanted.Supports(config.search.coarse)) return "";
  const std::string name = spec.model().substr(spec.model().rfind('/') + 1);  // npos + 1 is 0
  for (const std::string& known : {name, absl::AsciiStrToLower(name)}) {
    if (profiles.Has(known)) return known;
  }
  return "";
}

// RoPE of an index that states none: its profile's.
absl::Status TakeRope(const Profile& profile, const std::string& field, Geometry* geometry) {
  if (geometry->rope.stated() || profile.rope_json.empty() || profile.head_dim != geometry->head_dim) {
    return absl::OkStatus();
  }
  auto rope = ParseRope(profile.rope_json, geometry->head_dim, profile.rope_style, kUnstretched);
  auto others = ParseLayerRopes(profile.layer_ropes_json, geometry->head_dim, profile.rope_style, kUnstretched);
  if (!rope.ok() || !others.ok()) {
    const absl::Status& why = rope.ok() ? others.status() : rope.status();
    return FieldError("BAD_PROFILE", field, absl::StrCat("rope: ", why.message()),
                      absl::StatusCode::kFailedPrecondition);
  }
  geometry->rope = *std::move(rope);
  geometry->layer_ropes = *std::move(others);
  return absl::OkStatus();
}

// Codec and profile. The rest of the configuration has been read.
absl::Status CodecFrom(const v1::IndexSpec& spec, const std::string& prefix, Profiles* profiles, IndexConfig* config) {
  const v1::CodecSettings& wire = spec.codec();
  CodecConfig& codec = config->codec;
  codec.profile_name = ProfileOf(spec, *config, *profiles);
  codec.name = !wire.name().empty() ? wire.name() : DefaultCodec(!codec.profile_name.empty()).name;
  const CodecTraits* traits = FindCodec(codec.name);
  if (traits != nullptr && traits->needs_profile) {
    const CodeBits usual = UsualBits(config->geometry.head_dim);
    codec.coarse_bits = usual.coarse, codec.total_bits = usual.total;
  }
  if (wire.has_horizon()) codec.horizon = wire.horizon();
#define SEINE_OPTION_FROM(Type, name, ...) \
  if (wire.has_##name()) codec.name = wire.name();
  SEINE_FOR_EACH_CODEC_OPTION(SEINE_OPTION_FROM)
#undef SEINE_OPTION_FROM
  if (traits == nullptr || !traits->needs_profile || codec.profile_name.empty()) return absl::OkStatus();
  auto profile = profiles->Find(codec.profile_name, prefix + ".codec.profile");
  if (!profile.ok()) return profile.status();
  codec.profile = *std::move(profile);
  return TakeRope(*codec.profile, prefix + ".codec.profile", &config->geometry);
}

// Rows of at most `width` entries as one [rows, width] tensor; what a row lacks is `padding`.
template <typename T>
void SetRows(v1::DType dtype, const std::vector<std::vector<T>>& rows, int sets, int width, T padding,
             v1::Tensor* tensor) {
  SetTensor(dtype, {sets, width}, tensor);
  std::string* raw = tensor->mutable_raw();
  raw->resize(static_cast<size_t>(sets) * width * sizeof(T));
  T* out = reinterpret_cast<T*>(raw->data());
  for (int s = 0; s < sets; ++s, out += width) {
    const size_t count = static_cast<size_t>(s) < rows.size() ? std::min<size_t>(rows[s].size(), width) : 0;
    if (count > 0) memcpy(out, rows[s].data(), count * sizeof(T));
    std::fill(out + count, out + width, padding);
  }
}

}  // namespace

void SetTensor(v1::DType dtype, std::initializer_list<int64_t> shape, v1::Tensor* tensor) {
  tensor->set_dtype(dtype);
  tensor->mutable_shape()->Assign(shape.begin(), shape.end());
}

v1::DType ToProto(DType dtype) { return ToWire<v1::DType>(dtype); }

absl::StatusOr<IndexConfig> ConfigFrom(const v1::IndexSpec& spec, absl::string_view prefix, Profiles* profiles) {
  IndexConfig config;
  config.name = spec.name();
  if (auto s = CheckName(spec.name(), absl::StrCat(prefix, ".name")); !s.ok()) return s;
  if (auto s = GeometryFrom(spec.geometry(), prefix, &config.geometry); !s.ok()) return s;
  const auto& zones = spec.zones();
  if (zones.has_sink()) config.zones.sink = zones.sink();
  if (zones.has_local()) config.zones.local = zones.local();
  if (zones.has_update_buffer()) config.zones.update_buffer = zones.update_buffer();
  if (zones.has_dense_threshold()) config.zones.dense_threshold = zones.dense_threshold();
  if (spec.codec().has_seed()) config.codec.seed = spec.codec().seed();
  if (spec.codec().has_centre_window()) config.codec.centre_window = spec.codec().centre_window();
  const std::string centre = absl::StrCat(prefix, ".codec.centre"), store = absl::StrCat(prefix, ".kv_store");
  if (auto s = FromWire(spec.codec().centre(), v1::Centre_IsValid, centre, &config.codec.centre); !s.ok()) return s;
  if (auto s = SearchFrom(spec.retrieval(), prefix, &config.search); !s.ok()) return s;
  if (spec.retrieval().has_gate()) config.gate = spec.retrieval().gate();
  if (config.search.coarse == Coarse::kCollision && spec.codec().centre() == 0) config.codec.centre = Centre::kNone;
  if (auto s = FromWire(spec.kv_store(), v1::KvStore_IsValid, store, &config.kv_store); !s.ok()) return s;
  config.memory_limit_bytes = spec.memory_limit_bytes();
  config.model = spec.model();
  if (auto s = CodecFrom(spec, std::string(prefix), profiles, &config); !s.ok()) return s;
  if (spec.has_eviction()) {
    config.eviction.emplace();
    absl::Status s =
        EvictionFrom(spec.eviction(), absl::StrCat(prefix, ".eviction"), config.geometry, profiles, &*config.eviction);
    if (!s.ok()) return s;
    if (config.eviction->profile != nullptr) {
      s = TakeRope(*config.eviction->profile, absl::StrCat(prefix, ".eviction.profile"), &config.geometry);
      if (!s.ok()) return s;
    }
  }
  if (spec.has_subspace()) {
    config.subspace.emplace();
    const std::string field = absl::StrCat(prefix, ".subspace");
    if (auto s = SubspaceFrom(spec.subspace(), field, profiles, &*config.subspace); !s.ok()) return s;
    if (config.subspace->profile != nullptr) {
      if (auto s = TakeRope(*config.subspace->profile, field + ".profile", &config.geometry); !s.ok()) return s;
    }
  }
  return config;
}

void ToProto(const IndexConfig& config, v1::IndexSpec* spec) {
  spec->set_name(config.name);
  auto* geometry = spec->mutable_geometry();
  geometry->set_num_layers(config.geometry.num_layers);
  geometry->set_num_q_heads(config.geometry.num_q_heads);
  geometry->set_num_kv_heads(config.geometry.num_kv_heads);
  geometry->set_head_dim(config.geometry.head_dim);
  geometry->set_dtype(ToProto(config.geometry.dtype));
  const auto state = [](const Rope& rope, v1::Rope* wire) {
    wire->set_style(ToWire<v1::RopeStyle>(rope.style));
    wire->mutable_inv_freq()->Assign(rope.inv_freq.begin(), rope.inv_freq.end());
    wire->set_rotary_dim(rope.rotary_dim);
  };
  if (config.geometry.rope.stated()) state(config.geometry.rope, geometry->mutable_rope());
  std::map<std::vector<double>, v1::LayerRope*> groups;
  for (const auto& [layer, rope] : config.geometry.layer_ropes) {
    v1::LayerRope*& group = groups[rope.inv_freq];
    if (group == nullptr) state(rope, (group = geometry->add_layer_ropes())->mutable_rope());
    group->add_layers(layer);
  }
  auto* zones = spec->mutable_zones();
  zones->set_sink(config.zones.sink);
  zones->set_local(config.zones.local);
  zones->set_update_buffer(config.zones.update_buffer);
  zones->set_dense_threshold(config.zones.dense_threshold);
  auto* codec = spec->mutable_codec();
  codec->set_name(config.codec.name);
  codec->set_seed(config.codec.seed);
  codec->set_centre(ToWire<v1::Centre>(config.codec.centre));
  codec->set_centre_window(config.codec.centre_window);
  const CodecTraits& traits = TraitsOf(config.codec.name);
  if (traits.needs_profile) {
    codec->set_profile(config.codec.profile_name);
    codec->set_horizon(config.codec.horizon);
  }
#define SEINE_OPTION_TO(Type, name, ...) \
  if (traits.Takes(#name)) codec->set_##name(config.codec.name);
  SEINE_FOR_EACH_CODEC_OPTION(SEINE_OPTION_TO)
#undef SEINE_OPTION_TO
  auto* retrieval = spec->mutable_retrieval();
  retrieval->set_top_k(config.search.top_k);
  retrieval->set_candidate_fraction(config.search.candidate_fraction);
  retrieval->set_rescore_k(config.search.rescore_k);
  retrieval->set_coarse(ToWire<v1::Coarse>(config.search.coarse));
  retrieval->set_collision_fraction(config.search.collision_fraction);
  retrieval->set_scope(ToWire<v1::Scope>(config.search.scope));
  retrieval->set_gqa_reduce(ToWire<v1::GqaReduce>(config.search.gqa_reduce));
  retrieval->set_softmax_scale(config.search.softmax_scale);
  retrieval->set_gate(config.gate);
  spec->set_kv_store(ToWire<v1::KvStore>(config.kv_store));
  spec->set_memory_limit_bytes(config.memory_limit_bytes);
  spec->set_model(config.model);
  if (config.eviction) ToProto(*config.eviction, config.geometry, spec->mutable_eviction());
  if (config.subspace) ToProto(*config.subspace, spec->mutable_subspace());
}

absl::StatusOr<SearchParams> ParamsFrom(const v1::Selector& selector, const IndexConfig& config) {
  SearchParams params = config.search;
  if (selector.size_case() == v1::Selector::kTopK) {
    params.top_k = selector.top_k();
    params.mass_p = 0;
  } else if (selector.size_case() == v1::Selector::kMassP) {
    const auto& mass = selector.mass_p();
    if (!(mass.p() > 0 && mass.p() <= 1)) return FieldError("OUT_OF_LIMITS", "selector.mass_p.p", "not in (0, 1]");
    if (mass.cap() < 1) return FieldError("OUT_OF_LIMITS", "selector.mass_p.cap", "less than 1");
    if (mass.floor() < 0 || mass.floor() > mass.cap()) {
      return FieldError("OUT_OF_LIMITS", "selector.mass_p.floor", "not in [0, cap]");
    }
    params.mass_p = mass.p();
    params.mass_floor = std::max(mass.floor(), 1);
    params.top_k = mass.cap();
  }
  if (selector.has_candidate_fraction() && selector.has_recall_target()) {
    return FieldError("CONFLICT", "selector.recall_target", "candidate_fraction is given as well");
  }
  if (selector.has_candidate_fraction()) params.candidate_fraction = selector.candidate_fraction();
  if (selector.has_recall_target()) {
    if (!(selector.recall_target() > 0 && selector.recall_target() < 1)) {
      return FieldError("OUT_OF_LIMITS", "selector.recall_target", "not in (0, 1)");
    }
    params.recall_target = selector.recall_target();
  }
  if (selector.has_rescore_k()) params.rescore_k = selector.rescore_k();
  if (auto s = FromWire(selector.scope(), v1::Scope_IsValid, "selector.scope", &params.scope); !s.ok()) return s;
  if (auto s = FromWire(selector.gqa_reduce(), v1::GqaReduce_IsValid, "selector.gqa_reduce", &params.gqa_reduce);
      !s.ok())
    return s;
  if (selector.exact()) {
    if (config.kv_store == KvStore::kNone) {
      return FieldError("NO_KEYS", "selector.exact", "the index stores no keys", absl::StatusCode::kFailedPrecondition);
    }
    params.method = Method::kExact;
  }
  return params;
}

AttentionParams AttentionFrom(const v1::Attention& attention) {
  AttentionParams params;
  if (attention.has_tail()) params.tail = attention.tail();
  params.scale = attention.scale();
  params.softcap = attention.softcap();
  params.with_positions = attention.with_positions();
  if (attention.has_prompt_mass()) params.prompt_mass = attention.prompt_mass();
  return params;
}

void ToProto(const ItemAnswer& answer, const AnswerShape& shape, v1::RetrieveAnswer* out) {
  if (!answer.status.ok()) return ToProto(answer.status, out->mutable_status());
  const int sets = shape.sets, width = answer.path == SearchMode::kDense ? 0 : shape.width;
  out->set_path(ToWire<v1::SearchMode>(answer.path));
  out->set_num_tokens(answer.num_tokens);
  out->set_zone_begin(answer.zone_begin);
  out->set_zone_end(answer.zone_end);
  out->set_all_returned(answer.all_returned);
  out->set_codes_stale(answer.codes_stale);
  SetRows<int32_t>(v1::D_TYPE_INT32, answer.positions, sets, width, -1, out->mutable_positions());
  SetTensor(v1::D_TYPE_INT32, {sets}, out->mutable_counts());
  std::string* counts = out->mutable_counts()->mutable_raw();
  counts->assign(static_cast<size_t>(sets) * sizeof(int32_t), '\0');
  for (size_t s = 0; s < answer.positions.size() && s < static_cast<size_t>(sets); ++s) {
    const auto count = static_cast<int32_t>(answer.positions[s].size());
    memcpy(counts->data() + s * sizeof(int32_t), &count, sizeof(count));
  }
  out->clear_dense_positions();
  for (const std::vector<int32_t>& head : answer.dense_positions) SetVector(head, out->add_dense_positions());
  answer.masses.empty() ? out->clear_masses() : SetVector(answer.masses, out->mutable_masses());
  out->set_capped(answer.capped);
  if (shape.with_scores) SetRows<float>(v1::D_TYPE_FLOAT32, answer.scores, sets, width, 0.0f, out->mutable_scores());
}

void ToProto(const AttendAnswer& answer, const AnswerShape& shape, v1::AttendAnswer* out) {
  if (!answer.status.ok()) return ToProto(answer.status, out->mutable_status());
  out->set_path(ToWire<v1::SearchMode>(answer.path));
  out->set_num_tokens(answer.num_tokens);
  out->set_attended_tokens(answer.attended_tokens);
  out->set_tail(answer.tail);
  out->set_codes_stale(answer.codes_stale);
  const int64_t heads = shape.num_q_heads, tokens = answer.prompt_tokens;
  if (tokens > 0) {
    SetTensor(v1::D_TYPE_FLOAT32, {tokens, heads, shape.head_dim}, out->mutable_output());
    SetTensor(v1::D_TYPE_FLOAT32, {tokens, heads}, out->mutable_log_sum_exp());
  } else {
    SetTensor(v1::D_TYPE_FLOAT32, {heads, shape.head_dim}, out->mutable_output());
    SetTensor(v1::D_TYPE_FLOAT32, {heads}, out->mutable_log_sum_exp());
  }
  out->mutable_output()->set_raw(answer.output.data(), answer.output.size() * sizeof(float));
  out->mutable_log_sum_exp()->set_raw(answer.log_sum_exp.data(), answer.log_sum_exp.size() * sizeof(float));
  if (shape.with_positions) ToProto(answer.selected, shape, out->mutable_selected());
}

}  // namespace seine
