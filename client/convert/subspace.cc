#include "client/convert/subspace.h"

#include "absl/strings/str_cat.h"
#include "client/convert/eviction.h"

namespace seine::client {
namespace {

SubspaceMetrics::Learning FromProto(const v1::SubspaceLearning& in) {
  return {in.rows(), in.updates(), in.residual(), in.last_residual()};
}

absl::Status SetBases(const char* name, const LayerBases& bases, int rank, const std::vector<float>& numbers,
                      v1::Tensor* out) {
  const int64_t shape[] = {bases.num_kv_heads, bases.head_dim, rank};
  if (static_cast<int64_t>(numbers.size()) != shape[0] * shape[1] * shape[2]) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, ": ", numbers.size(), " numbers for [", shape[0], ", ", shape[1], ", ", shape[2], "]"));
  }
  out->set_dtype(v1::D_TYPE_FLOAT32);
  for (const int64_t dim : shape) out->add_shape(dim);
  out->set_raw(numbers.data(), numbers.size() * sizeof(float));
  return absl::OkStatus();
}

}  // namespace

SubspaceMetrics FromProto(const v1::SubspaceMetrics& in) {
  SubspaceMetrics out;
  out.low_rank_tokens = in.low_rank_tokens();
  out.full_rank_tokens = in.full_rank_tokens();
  out.code_bytes = in.code_bytes();
  out.full_rank_bytes = in.full_rank_bytes();
  out.basis_bytes = in.basis_bytes();
  out.versions = in.versions();
  out.keys = FromProto(in.keys());
  out.values = FromProto(in.values());
  out.angle = in.angle();
  out.overlap = in.overlap();
  out.blocks_without_queries = in.blocks_without_queries();
  return out;
}

absl::Status ToProto(const LayerBases& bases, v1::LayerBases* out) {
  absl::Status status = SetBases("keys", bases, bases.key_rank, bases.keys, out->mutable_keys());
  status.Update(SetBases("values", bases, bases.value_rank, bases.values, out->mutable_values()));
  return status;
}

absl::Status FromProto(const v1::LayerBases& in, v1::KeyFrame frame, LayerBases* out) {
  absl::Status status = ReadVector(in.keys(), &out->keys);
  status.Update(ReadVector(in.values(), &out->values));
  if (status.ok() && (in.keys().shape_size() != 3 || in.values().shape_size() != 3)) {
    status = absl::InternalError("the server's answer is malformed: bases are not of three dimensions");
  }
  if (!status.ok()) return status;
  out->frame = static_cast<KeyFrame>(frame);
  out->num_kv_heads = static_cast<int>(in.keys().shape(0));
  out->head_dim = static_cast<int>(in.keys().shape(1));
  out->key_rank = static_cast<int>(in.keys().shape(2));
  out->value_rank = static_cast<int>(in.values().shape(2));
  return absl::OkStatus();
}

}  // namespace seine::client
