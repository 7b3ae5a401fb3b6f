// Reading and checking a trace.
#include "client/demo/trace.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace seine::demo {
namespace {

// The number of "layers.<l>.k"; -1 for other names.
int LayerOfKeys(absl::string_view name) {
  int layer = -1;
  const bool matches =
      absl::ConsumePrefix(&name, "layers.") && absl::ConsumeSuffix(&name, ".k") && absl::SimpleAtoi(name, &layer);
  return matches && layer >= 0 ? layer : -1;
}

bool ToDType(TensorFile::Type type, client::DType* dtype) {
  if (type == TensorFile::Type::kF16)
    *dtype = client::DType::kFloat16;
  else if (type == TensorFile::Type::kBF16)
    *dtype = client::DType::kBFloat16;
  else if (type == TensorFile::Type::kF32)
    *dtype = client::DType::kFloat32;
  else
    return false;
  return true;
}

}  // namespace

absl::StatusOr<Trace> Trace::Open(const std::string& path) {
  absl::StatusOr<TensorFile> file = TensorFile::Open(path);
  if (!file.ok()) return file.status();
  Trace trace(*std::move(file));
  for (const std::string& name : trace.file_.names()) {
    if (LayerOfKeys(name) >= 0) trace.model_layers_.push_back(LayerOfKeys(name));
  }
  std::sort(trace.model_layers_.begin(), trace.model_layers_.end());
  if (trace.model_layers_.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": not a trace: it holds no tensor layers.<l>.k"));
  }
  for (int layer : trace.model_layers_) {
    const absl::Status status = trace.AddLayer(layer);
    if (!status.ok()) return status;
  }
  return trace;
}

absl::Status Trace::AddLayer(int model_layer) {
  const std::string name = absl::StrCat("layers.", model_layer);
  absl::StatusOr<TensorFile::Tensor> keys = file_.Get(name + ".k"), queries = file_.Get(name + ".q");
  if (!keys.ok()) return keys.status();
  if (!queries.ok()) return absl::InvalidArgumentError(queries.status().message());
  const auto bad = [&](const auto&... parts) {
    return absl::InvalidArgumentError(absl::StrCat(file_.path(), ": ", name, parts...));
  };
  const std::vector<int64_t>&k = keys->shape, &q = queries->shape;
  client::DType dtype;
  if (!ToDType(keys->type, &dtype) || queries->type != keys->type)
    return bad(": q and k must both be F16, BF16 or F32");
  if (k.size() != 3 || q.size() != 3 || q[2] != k[2] || k[1] < 1 || q[1] < k[1] || q[1] % k[1] != 0) {
    return bad(": k must be [tokens, kv heads, head_dim] and q [queries, a multiple of kv heads, head_dim]");
  }
  if (q[0] < 1 || q[0] > k[0]) return bad(": ", q[0], " queries for ", k[0], " tokens");
  if (layers_.empty()) {
    num_tokens_ = k[0];
    num_kv_heads_ = static_cast<int>(k[1]);
    head_dim_ = static_cast<int>(k[2]);
    num_q_heads_ = static_cast<int>(q[1]);
    query_start_ = k[0] - q[0];  // q holds the last positions
    dtype_ = dtype;
  } else if (k != layers_[0].keys.shape || q != layers_[0].queries.shape || dtype != dtype_) {
    return bad(" differs in shape or dtype from layers.", model_layers_[0]);
  }
  layers_.push_back({*std::move(queries), *std::move(keys)});
  return absl::OkStatus();
}

std::string Trace::MetadataOr(const std::string& key, const std::string& otherwise) const {
  const auto it = file_.metadata().find(key);
  return it == file_.metadata().end() ? otherwise : it->second;
}

client::ConstTensor Trace::Keys(int layer, int64_t first, int64_t count) const {
  const TensorFile::Tensor& keys = layers_[layer].keys;
  return {keys.data + first * (keys.bytes / num_tokens_), dtype_, {count, num_kv_heads_, head_dim_}};
}

client::ConstTensor Trace::Query(int layer, int64_t position) const {
  const TensorFile::Tensor& queries = layers_[layer].queries;
  const int64_t row = position - query_start_;
  return {queries.data + row * (queries.bytes / queries.shape[0]), dtype_, {num_q_heads_, head_dim_}};
}

std::vector<float> Trace::KeysAsFloat(int layer) const { return *TensorFile::ToFloat32(layers_[layer].keys); }

std::vector<float> Trace::QueryAsFloat(int layer, int64_t position) const {
  const int64_t count = int64_t{num_q_heads_} * head_dim_;
  return *TensorFile::ToFloat32(layers_[layer].queries, (position - query_start_) * count, count);
}

}  // namespace seine::demo
