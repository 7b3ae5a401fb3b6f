// A profile's layer out of the server's answer.
#include <type_traits>
#include <vector>

#include "client/convert/convert.h"
#include "profile/moments.h"
#include "profile/profile.h"

namespace seine::client {
namespace {

constexpr int64_t kMostInShape = 65536;  // heads, head_dim: more is no model

}  // namespace

// Heads are counted by the means; every other tensor has to agree.
absl::StatusOr<Profile> FromProto(const v1::MeasureProfileResponse& measured) {
  const auto size = [](const v1::Tensor& tensor, int axis) {
    return tensor.shape_size() == 2 && tensor.shape(axis) <= kMostInShape ? static_cast<int>(tensor.shape(axis)) : 0;
  };
  Profile profile;
  profile.num_q_heads = size(measured.q_mean(), 0);
  profile.num_kv_heads = size(measured.k_mean(), 0);
  profile.head_dim = size(measured.q_mean(), 1);
  profile.key_tokens = measured.key_tokens();
  profile.query_tokens = measured.query_tokens();
  LayerProfile& layer = profile.layers.emplace_back();
  absl::Status status = profile.head_dim > 0 && profile.num_q_heads > 0 && profile.num_kv_heads > 0
                            ? absl::OkStatus()
                            : absl::InternalError("the server's answer is malformed: it has no heads");
  const int dim = profile.head_dim;
  const auto read = [&](const char* name, const v1::Tensor& tensor, int heads, auto* out) {
    constexpr bool kMoments = std::is_same_v<decltype(out), std::vector<Eigen::MatrixXd>*>;
    if (!status.ok()) return;
    std::vector<float> values;
    status = ReadFloats(name, tensor, heads * (kMoments ? TriangleSize(dim) : int64_t{dim}), &values);
    if (!status.ok()) return;
    if constexpr (kMoments) {
      *out = MomentsOf(values, heads, dim);
    } else {
      *out = MeansOf(values, heads, dim);
    }
  };
  read("q_mean", measured.q_mean(), profile.num_q_heads, &layer.q_mean);
  read("q_moment", measured.q_moment(), profile.num_q_heads, &layer.q_moment);
  read("k_mean", measured.k_mean(), profile.num_kv_heads, &layer.k_mean);
  read("k_moment", measured.k_moment(), profile.num_kv_heads, &layer.k_moment);
  read("k_residual", measured.k_residual(), profile.num_kv_heads, &layer.k_residual);
  if (measured.has_v_mean()) {
    read("v_mean", measured.v_mean(), profile.num_kv_heads, &layer.v_mean);
    read("v_moment", measured.v_moment(), profile.num_kv_heads, &layer.v_moment);
  }
  if (!status.ok()) return status;
  return profile;
}

}  // namespace seine::client
