#include "service/convert.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "service/validate.h"

namespace seine {
namespace {

// Every wire enum is the index's enum shifted by one, 0 meaning "not given".
template <typename Wire, typename Plain>
constexpr bool Shifted(Wire wire, Plain plain) {
  return static_cast<int>(wire) == static_cast<int>(plain) + 1;
}
static_assert(Shifted(v1::D_TYPE_FLOAT32, DType::kFloat32) && Shifted(v1::D_TYPE_FLOAT16, DType::kFloat16) &&
              Shifted(v1::D_TYPE_BFLOAT16, DType::kBFloat16));
static_assert(Shifted(v1::CENTRE_NONE, Centre::kNone) && Shifted(v1::CENTRE_GLOBAL, Centre::kGlobal) &&
              Shifted(v1::CENTRE_WINDOW, Centre::kWindow));
static_assert(Shifted(v1::COARSE_SIGN_IP, Coarse::kSignIp) && Shifted(v1::COARSE_COLLISION, Coarse::kCollision));
static_assert(Shifted(v1::SCOPE_PER_KV_HEAD, Scope::kPerKvHead) && Shifted(v1::SCOPE_PER_Q_HEAD, Scope::kPerQHead));
static_assert(Shifted(v1::GQA_REDUCE_SOFTMAX_SUM, GqaReduce::kSoftmaxSum) &&
              Shifted(v1::GQA_REDUCE_MAX, GqaReduce::kMax) && Shifted(v1::GQA_REDUCE_MEAN, GqaReduce::kMean));
static_assert(Shifted(v1::KV_STORE_NONE, KvStore::kNone) && Shifted(v1::KV_STORE_KEYS, KvStore::kKeys) &&
              Shifted(v1::KV_STORE_KEYS_VALUES, KvStore::kKeysValues));
static_assert(Shifted(v1::PATH_INDEX, Path::kIndex) && Shifted(v1::PATH_DENSE, Path::kDense) &&
              Shifted(v1::PATH_EXACT, Path::kExact));

template <typename Wire, typename Plain>
Wire Up(Plain plain) {
  return static_cast<Wire>(static_cast<int>(plain) + 1);
}

// Sets *out unless the wire's value is 0. proto3 enums are open: a value from outside the enum arrives as a number.
template <typename Wire, typename Plain>
absl::Status Down(Wire wire, bool (*is_valid)(int), absl::string_view field, Plain* out) {
  if (static_cast<int>(wire) == 0) return absl::OkStatus();
  if (!is_valid(wire))
    return FieldError("UNKNOWN_ENUM", field, absl::StrCat("no such value: ", static_cast<int>(wire)));
  *out = static_cast<Plain>(static_cast<int>(wire) - 1);
  return absl::OkStatus();
}

// Fields whose names differ between IndexConfig and IndexSpec, and between SearchParams and Selector.
constexpr std::pair<absl::string_view, absl::string_view> kSpecNamePairs[] = {
    {"codec.centre_tokens: ", "codec.centre_window: "},
    {"search.reduce: ", "retrieval.gqa_reduce: "},
    {"search.", "retrieval."},
};
constexpr std::pair<absl::string_view, absl::string_view> kSelectorNamePairs[] = {
    {"mass_p: ", "mass_p.p: "},
    {"mass_floor: ", "mass_p.floor: "},
    {"reduce: ", "gqa_reduce: "},
};

absl::Status SearchFrom(const v1::RetrievalSettings& settings, absl::string_view prefix, SearchParams* search) {
  if (settings.has_top_k()) search->top_k = settings.top_k();
  if (settings.has_beta()) search->beta = settings.beta();
  if (settings.has_refine()) search->refine = settings.refine();
  if (settings.has_rho()) search->rho = settings.rho();
  if (settings.has_softmax_scale()) search->softmax_scale = settings.softmax_scale();
  const std::string path = absl::StrCat(prefix, ".retrieval.");
  if (auto s = Down(settings.coarse(), v1::Coarse_IsValid, path + "coarse", &search->coarse); !s.ok()) return s;
  if (auto s = Down(settings.scope(), v1::Scope_IsValid, path + "scope", &search->scope); !s.ok()) return s;
  return Down(settings.gqa_reduce(), v1::GqaReduce_IsValid, path + "gqa_reduce", &search->reduce);
}

absl::Status GeometryFrom(const v1::Geometry& wire, absl::string_view prefix, Geometry* geometry) {
  geometry->num_layers = wire.num_layers();
  geometry->num_q_heads = wire.num_q_heads();
  geometry->num_kv_heads = wire.num_kv_heads();
  geometry->head_dim = wire.head_dim();
  const std::string field = absl::StrCat(prefix, ".geometry.dtype");
  if (wire.dtype() == v1::D_TYPE_UNSPECIFIED) return FieldError("UNKNOWN_DTYPE", field, "not given");
  if (wire.dtype() == v1::D_TYPE_INT32) return FieldError("UNKNOWN_DTYPE", field, "keys are of a float type");
  return Down(wire.dtype(), v1::DType_IsValid, field, &geometry->dtype);
}

void SetTensor(v1::DType dtype, std::initializer_list<int64_t> shape, v1::Tensor* tensor) {
  tensor->set_dtype(dtype);
  tensor->mutable_shape()->Assign(shape.begin(), shape.end());
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

const FieldNames kSpecNames = kSpecNamePairs;

v1::DType ToProto(DType dtype) { return Up<v1::DType>(dtype); }

absl::StatusOr<IndexConfig> ConfigFrom(const v1::IndexSpec& spec, absl::string_view prefix) {
  IndexConfig config;
  config.name = spec.name();
  if (auto s = CheckName(spec.name(), absl::StrCat(prefix, ".name")); !s.ok()) return s;
  if (auto s = GeometryFrom(spec.geometry(), prefix, &config.geometry); !s.ok()) return s;
  const auto& zones = spec.zones();
  if (zones.has_sink()) config.zones.sink = zones.sink();
  if (zones.has_local()) config.zones.local = zones.local();
  if (zones.has_update_buffer()) config.zones.update_buffer = zones.update_buffer();
  if (zones.has_dense_threshold()) config.zones.dense_threshold = zones.dense_threshold();
  if (!spec.codec().name().empty()) config.codec.name = spec.codec().name();
  if (spec.codec().has_seed()) config.codec.seed = spec.codec().seed();
  if (spec.codec().has_centre_window()) config.codec.centre_tokens = spec.codec().centre_window();
  const std::string centre = absl::StrCat(prefix, ".codec.centre"), store = absl::StrCat(prefix, ".kv_store");
  if (auto s = Down(spec.codec().centre(), v1::Centre_IsValid, centre, &config.codec.centre); !s.ok()) return s;
  if (auto s = SearchFrom(spec.retrieval(), prefix, &config.search); !s.ok()) return s;
  if (auto s = Down(spec.kv_store(), v1::KvStore_IsValid, store, &config.kv_store); !s.ok()) return s;
  config.memory_limit_bytes = spec.memory_limit_bytes();
  if (auto s = Validate(config); !s.ok()) return Explain(s, prefix, kSpecNames);
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
  auto* zones = spec->mutable_zones();
  zones->set_sink(config.zones.sink);
  zones->set_local(config.zones.local);
  zones->set_update_buffer(config.zones.update_buffer);
  zones->set_dense_threshold(config.zones.dense_threshold);
  auto* codec = spec->mutable_codec();
  codec->set_name(config.codec.name);
  codec->set_seed(config.codec.seed);
  codec->set_centre(Up<v1::Centre>(config.codec.centre));
  codec->set_centre_window(config.codec.centre_tokens);
  auto* retrieval = spec->mutable_retrieval();
  retrieval->set_top_k(config.search.top_k);
  retrieval->set_beta(config.search.beta);
  retrieval->set_refine(config.search.refine);
  retrieval->set_coarse(Up<v1::Coarse>(config.search.coarse));
  retrieval->set_rho(config.search.rho);
  retrieval->set_scope(Up<v1::Scope>(config.search.scope));
  retrieval->set_gqa_reduce(Up<v1::GqaReduce>(config.search.reduce));
  retrieval->set_softmax_scale(config.search.softmax_scale);
  spec->set_kv_store(Up<v1::KvStore>(config.kv_store));
  spec->set_memory_limit_bytes(config.memory_limit_bytes);
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
  if (selector.has_beta()) params.beta = selector.beta();
  if (selector.has_refine()) params.refine = selector.refine();
  if (auto s = Down(selector.scope(), v1::Scope_IsValid, "selector.scope", &params.scope); !s.ok()) return s;
  if (auto s = Down(selector.gqa_reduce(), v1::GqaReduce_IsValid, "selector.gqa_reduce", &params.reduce); !s.ok())
    return s;
  if (selector.exact()) {
    if (config.kv_store == KvStore::kNone) {
      return FieldError("NO_KEYS", "selector.exact", "the index stores no keys", absl::StatusCode::kFailedPrecondition);
    }
    params.method = Method::kExact;
  }
  if (auto s = Validate(params); !s.ok()) return Explain(s, "selector", kSelectorNamePairs);
  return params;
}

void ToProto(const Index& index, v1::IndexInfo* info) {
  const IndexStats stats = index.stats();
  ToProto(index.config(), info->mutable_spec());
  info->set_num_sequences(stats.num_sequences);
  info->set_code_bytes(stats.code_bytes);
  info->set_store_bytes(stats.store_bytes);
}

void ToProto(const SequenceInfo& sequence, const std::string& index_name, v1::SequenceInfo* info) {
  info->mutable_handle()->set_index(index_name);
  info->mutable_handle()->set_id(sequence.handle.id);
  info->mutable_handle()->set_generation(sequence.handle.generation);
  info->mutable_layer_tokens()->Assign(sequence.layer_tokens.begin(), sequence.layer_tokens.end());
  info->set_code_bytes(sequence.code_bytes);
  info->set_store_bytes(sequence.store_bytes);
}

void ToProto(const HeadInfo& head, v1::DescribeHeadResponse* out) {
  out->set_num_tokens(head.num_tokens);
  out->set_zone_begin(head.zone_begin);
  out->set_zone_end(head.zone_end);
  out->set_num_segments(head.num_segments);
  out->set_code_bytes(head.code_bytes);
  out->set_store_bytes(head.store_bytes);
  out->set_bytes_per_key(head.bytes_per_key);
  out->set_codec(head.codec);
  out->set_coarse(head.coarse);
  out->set_centre(head.centre);
  out->set_coarse_bytes(head.layout.coarse_bytes);
  out->set_fine_bytes(head.layout.fine_bytes);
}

void ToProto(const ItemAnswer& answer, int sets, int width, bool with_scores, v1::RetrieveAnswer* out) {
  if (!answer.status.ok()) return ToProto(answer.status, out->mutable_status());
  if (answer.path == Path::kDense) width = 0;
  out->set_path(Up<v1::Path>(answer.path));
  out->set_num_tokens(answer.num_tokens);
  out->set_zone_begin(answer.dense_begin);
  out->set_zone_end(answer.dense_end);
  out->set_all_returned(answer.all_returned);
  SetRows<int32_t>(v1::D_TYPE_INT32, answer.positions, sets, width, -1, out->mutable_positions());
  SetTensor(v1::D_TYPE_INT32, {sets}, out->mutable_counts());
  std::string* counts = out->mutable_counts()->mutable_raw();
  counts->assign(static_cast<size_t>(sets) * sizeof(int32_t), '\0');
  for (size_t s = 0; s < answer.positions.size() && s < static_cast<size_t>(sets); ++s) {
    const auto count = static_cast<int32_t>(answer.positions[s].size());
    memcpy(counts->data() + s * sizeof(int32_t), &count, sizeof(count));
  }
  if (with_scores) SetRows<float>(v1::D_TYPE_FLOAT32, answer.scores, sets, width, 0.0f, out->mutable_scores());
}

}  // namespace seine
