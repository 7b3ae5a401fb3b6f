// Checks of what a call hands over: one clear error, before anything has changed.
#include "index/calls/checks.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "index/stop_status.h"
#include "kernels/host.h"
#include "profile/field_error.h"

namespace seine {
namespace {

constexpr int64_t kMaxTokens = INT32_MAX;  // positions are int32
constexpr int64_t kRowsChecked = 16384;    // between looks at the caller's token

}  // namespace

absl::Status Checks::CheckLayer(int layer) const {
  const int num_layers = context_.config.geometry.num_layers;
  if (layer >= 0 && layer < num_layers) return absl::OkStatus();
  return BadField("layer", layer, " is not in [0, ", num_layers, ")");
}

absl::Status Checks::CheckHead(int kv_head) const {
  const int num_heads = context_.config.geometry.num_kv_heads;
  if (kv_head >= 0 && kv_head < num_heads) return absl::OkStatus();
  return BadField("kv_head", kv_head, " is not in [0, ", num_heads, ")");
}

absl::Status Checks::CheckShape(const char* field, const TensorView& tensor) const {
  if (tensor.num_tokens < 0) {
    return BadField(field, tensor.num_tokens, " tokens");
  }
  const int64_t token_bytes = context_.token_bytes();
  size_t expected = 0;
  if (__builtin_mul_overflow(tensor.num_tokens, token_bytes, &expected) || tensor.bytes != expected) {
    const Geometry& g = context_.config.geometry;
    return BadField(field, tensor.bytes, " bytes given where ", tensor.num_tokens, " tokens of ", g.num_kv_heads,
                    " KV heads x ", g.head_dim, " x ", SizeOf(g.dtype), " bytes were announced");
  }
  if (tensor.bytes > 0 && tensor.data == nullptr) return BadField(field, "no data");
  return absl::OkStatus();
}

absl::Status Checks::CheckAppendShapes(int layer, int64_t position, const TensorView& keys,
                                       const TensorView& values) const {
  if (absl::Status s = CheckLayer(layer); !s.ok()) return s;
  if (position < 0) return BadField("position", position, " is negative");
  if (absl::Status s = CheckShape("keys", keys); !s.ok()) return s;
  if (context_.config.kv_store == KvStore::kKeysValues) {
    if (absl::Status s = CheckShape("values", values); !s.ok()) return s;
    if (values.num_tokens != keys.num_tokens) {
      return BadField("values", values.num_tokens, " tokens beside ", keys.num_tokens, " of keys");
    }
  } else if (values.num_tokens != 0 || values.bytes != 0) {
    return BadField("values", "given, but kv_store does not keep values");
  }
  if (position > kMaxTokens || keys.num_tokens > kMaxTokens - position) {
    return FieldError(absl::StatusCode::kOutOfRange, "position",
                      absl::StrCat("a layer holds at most ", kMaxTokens, " tokens"));
  }
  return absl::OkStatus();
}

absl::Status Checks::CheckAppend(int layer, int64_t position, const TensorView& keys, const TensorView& values,
                                 const QueryView& queries) const {
  if (absl::Status s = CheckAppendShapes(layer, position, keys, values); !s.ok()) return s;
  absl::Status status = CheckFinite("keys", position, keys);
  status.Update(CheckFinite("values", position, values));
  if (!status.ok()) return status;
  return CheckAppended(queries, keys.num_tokens);
}

absl::Status Checks::CheckAppended(const QueryView& queries, int64_t num_tokens) const {
  if (queries.num_tokens < 0 || queries.num_tokens > num_tokens) {
    return BadField("queries", "of ", queries.num_tokens, " positions beside ", num_tokens, " tokens");
  }
  if ((queries.data == nullptr) != (queries.num_tokens == 0)) return BadField("queries", "no data");
  if (queries.data == nullptr) return absl::OkStatus();
  if (context_.kept_queries() == 0 && !context_.eviction.accumulates()) {
    return BadField("queries", "given, but the index keeps none (eviction.keep_queries, subspace.full_rank_queries)");
  }
  return CheckFinite("queries", queries.data, queries.num_tokens);
}

absl::Status Checks::CheckFinite(const char* field, const float* queries, int64_t num_queries) const {
  const Geometry& g = context_.config.geometry;
  const ConstRows rows{queries, g.head_dim * sizeof(float), DType::kFloat32};
  const int64_t bad = host::FirstNonFinite(rows, num_queries * g.num_q_heads, g.head_dim);
  if (bad < 0) return absl::OkStatus();
  return BadField(field, "row ", bad / g.num_q_heads, ", head ", bad % g.num_q_heads, " holds NaN or infinity");
}

absl::Status Checks::CheckFinite(const char* field, int64_t position, const TensorView& tensor) const {
  const Geometry& g = context_.config.geometry;
  const ConstRows rows{tensor.data, static_cast<size_t>(context_.row_bytes()), g.dtype};
  const int64_t count = tensor.num_tokens * g.num_kv_heads;
  for (int64_t first = 0; first < count; first += kRowsChecked) {
    if (absl::Status s = StopStatus(); !s.ok()) return s;
    const ConstRows part{rows.row(first), rows.stride_bytes, g.dtype};
    int64_t bad = host::FirstNonFinite(part, std::min(kRowsChecked, count - first), g.head_dim);
    if (bad < 0) continue;
    bad += first;
    return BadField(field, "position ", position + bad / g.num_kv_heads, ", KV head ", bad % g.num_kv_heads,
                    " holds NaN or infinity, or its norm overflows");
  }
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<const Scorer>> Checks::CheckScorer(const ScorerConfig& config) const {
  if (context_.config.kv_store == KvStore::kNone) {
    return FieldError(absl::StatusCode::kFailedPrecondition, "handle",
                      "the index keeps no keys, and scorers read them");
  }
  auto scorer = MakeScorer(config);
  if (!scorer.ok()) return scorer.status();
  const char* const option = (*scorer)->values_option();
  if (option != nullptr && context_.config.kv_store != KvStore::kKeysValues) {
    return FieldError(absl::StatusCode::kFailedPrecondition, absl::StrCat("scorer.", option),
                      "kv_store keeps no values; keep them (keys_values) or turn it off");
  }
  return scorer;
}

absl::Status Checks::CheckScorerInputs(const Layer& layer, const ScorerInputs& given) const {
  const Geometry& g = context_.config.geometry;
  const auto row_bytes = static_cast<size_t>(g.head_dim) * sizeof(float);
  if (given.num_queries < 0 || given.num_queries > layer.length()) {
    return BadField("given.queries", "of ", given.num_queries, " positions; the layer holds ", layer.length(),
                    " tokens");
  }
  if ((given.queries == nullptr) != (given.num_queries == 0)) return BadField("given.queries", "no data");
  if (given.queries != nullptr) {
    if (absl::Status s = CheckFinite("given.queries", given.queries, given.num_queries); !s.ok()) return s;
  }
  if (absl::Status s = CheckSoftmaxScale("given.softmax_scale", given.softmax_scale); !s.ok()) return s;
  if ((given.output_projection == nullptr) != (given.hidden_size == 0)) {
    return BadField("given.output_projection", "no data");
  }
  if (given.hidden_size < 0 || given.hidden_size > kMaxHiddenSize) {
    return BadField("given.output_projection", "hidden_size ", given.hidden_size, " is not in [1, ", kMaxHiddenSize,
                    "]");
  }
  if (given.output_projection != nullptr) {
    const ConstRows rows{given.output_projection, row_bytes, DType::kFloat32};
    const int64_t bad = host::FirstNonFinite(rows, int64_t{given.hidden_size} * g.num_q_heads, g.head_dim);
    if (bad >= 0) {
      return BadField("given.output_projection", "row ", bad / g.num_q_heads, ", head ", bad % g.num_q_heads,
                      " holds NaN or infinity");
    }
  }
  if (given.filters == nullptr) return absl::OkStatus();
  const int64_t head = host::FirstNonFinite({given.filters, row_bytes, DType::kFloat32}, g.num_kv_heads, g.head_dim);
  if (head < 0) return absl::OkStatus();
  return BadField("given.filters", "KV head ", head, " holds NaN or infinity");
}

}  // namespace seine
