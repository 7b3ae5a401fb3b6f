#include "client/convert/eviction.h"

#include <cstring>
#include <limits>

#include "client/convert/convert.h"

namespace seine::client {
namespace {

// A tensor of one dimension, or of two in a row, whose bytes must be those of its shape.
template <typename T>
absl::Status Read(const v1::Tensor& tensor, v1::DType dtype, std::vector<T>* out) {
  out->clear();
  int64_t count = tensor.shape_size() == 0 ? 0 : 1;
  for (const int64_t dim : tensor.shape()) {
    if (dim < 0 || dim > (int64_t{1} << 31) || (dim > 0 && count > (int64_t{1} << 40) / dim)) count = -1;
    if (count < 0) break;
    count *= dim;
  }
  if (count < 0 || (count > 0 && tensor.dtype() != dtype) ||
      tensor.raw().size() != static_cast<size_t>(count) * sizeof(T)) {
    return absl::InternalError("the server's answer is malformed: a tensor's bytes are not those of its shape");
  }
  out->resize(count);
  if (count > 0) std::memcpy(out->data(), tensor.raw().data(), tensor.raw().size());
  return absl::OkStatus();
}

// Positions of each KV head.
absl::Status ReadHeads(const google::protobuf::RepeatedPtrField<v1::Tensor>& heads,
                       std::vector<std::vector<int32_t>>* out) {
  absl::Status status;
  out->resize(heads.size());
  for (int h = 0; h < heads.size(); ++h) status.Update(Read(heads[h], v1::D_TYPE_INT32, &(*out)[h]));
  return status;
}

absl::Status FromProto(const v1::HeadDiagnosis& in, HeadDiagnosis* out) {
  out->tokens = in.tokens();
  out->two_nn = in.two_nn();
  out->mle = in.mle();
  out->pca95 = in.pca95();
  out->cosine_mean = in.cosine_mean();
  out->cosine_std = in.cosine_std();
  out->norm_mean = in.norm_mean();
  out->norm_std = in.norm_std();
  out->dilution = in.dilution();
  out->attention_tokens = in.attention_tokens();
  absl::Status status = ReadVector(in.overlap(), &out->overlap);
  status.Update(ReadVector(in.correlation(), &out->correlation));
  status.Update(ReadVector(in.attention_correlation(), &out->attention_correlation));
  return status;
}

}  // namespace

absl::Status ToProto(const ScorerInputs& given, v1::ScorerInputs* out) {
  absl::Status status;
  if (!IsAbsent(given.queries)) status.Update(TensorToProto("queries", given.queries, out->mutable_queries()));
  if (!IsAbsent(given.filters)) status.Update(TensorToProto("filters", given.filters, out->mutable_filters()));
  if (!IsAbsent(given.output_projection)) {
    status.Update(TensorToProto("output_projection", given.output_projection, out->mutable_output_projection()));
  }
  if (given.softmax_scale) out->set_softmax_scale(*given.softmax_scale);
  for (const ConstTensor& scores : given.scores) status.Update(TensorToProto("scores", scores, out->add_scores()));
  return status;
}

absl::Status ReadVector(const v1::Tensor& tensor, std::vector<int32_t>* out) {
  return Read(tensor, v1::D_TYPE_INT32, out);
}
absl::Status ReadVector(const v1::Tensor& tensor, std::vector<float>* out) {
  return Read(tensor, v1::D_TYPE_FLOAT32, out);
}

absl::Status FromProto(const v1::Retained& retained, Retained* out) {
  out->report = static_cast<RetainedReport>(retained.report());
  out->evictions_before = retained.evictions_before();
  out->evictions = retained.evictions();
  out->num_tokens = retained.num_tokens();
  absl::Status status = ReadVector(retained.counts(), &out->counts);
  status.Update(ReadHeads(retained.dropped(), &out->dropped));
  status.Update(ReadHeads(retained.kept(), &out->kept));
  if (!status.ok()) return status;
  if (out->num_tokens < 0 || out->num_tokens > std::numeric_limits<int32_t>::max()) {
    return absl::InternalError("the server's answer is malformed: a layer of more tokens than positions can name");
  }
  for (const auto* heads : {&out->dropped, &out->kept}) {
    if (heads->empty() || heads->size() == out->counts.size()) continue;
    return absl::InternalError("the server's answer is malformed: counts and positions retained are of other heads");
  }
  return absl::OkStatus();
}

absl::Status FromProto(const v1::AppendStreamResponse& response, AppendTotals* out) {
  *out = {response.pieces(), response.tokens()};
  absl::Status status;
  for (const v1::LayerRetained& in : response.retained()) {
    LayerRetained& entry = out->retained.emplace_back();
    entry.sequence = FromProto(in.handle());
    entry.layer = in.layer();
    status.Update(FromProto(in.retained(), &entry.retained));
  }
  return status;
}

absl::Status FromProto(const v1::EvictResponse& response, Evicted* out) {
  absl::Status status;
  for (const v1::Tensor& kept : response.kept()) status.Update(ReadVector(kept, &out->kept.emplace_back()));
  out->tokens_evicted = response.tokens_evicted();
  out->bytes_freed = response.bytes_freed();
  status.Update(FromProto(response.retained(), &out->retained));
  return status;
}

absl::Status FromProto(const v1::ScoreResponse& response, std::vector<HeadScores>* out) {
  absl::Status status;
  for (const v1::HeadScores& in : response.heads()) {
    HeadScores& head = out->emplace_back();
    status.Update(ReadVector(in.positions(), &head.positions));
    status.Update(ReadVector(in.scores(), &head.scores));
    if (head.positions.size() != head.scores.size()) {
      status.Update(absl::InternalError("the server's answer is malformed: scores and positions differ in number"));
    }
  }
  return status;
}

absl::Status FromProto(const v1::DiagnoseResponse& response, std::vector<HeadDiagnosis>* out) {
  absl::Status status;
  for (const v1::HeadDiagnosis& in : response.heads()) status.Update(FromProto(in, &out->emplace_back()));
  return status;
}

}  // namespace seine::client
