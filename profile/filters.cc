#include "profile/filters.h"

#include <Eigen/Core>

#include "absl/strings/str_cat.h"
#include "profile/io/tensor_file.h"
#include "profile/layout.h"
#include "profile/moments.h"
#include "profile/spectrum.h"

namespace seine {

namespace {

Eigen::VectorXd LeadingEigenvector(const Eigen::MatrixXd& moment) {
  return Decompose(moment).vectors.col(moment.cols() - 1);
}

// filters[kv_head] += direction / group.
void AddShare(const Eigen::VectorXd& direction, int kv_head, int group, Filters* filters) {
  const auto dim = static_cast<int>(direction.size());
  for (int j = 0; j < dim; ++j) {
    (*filters)[static_cast<size_t>(kv_head) * dim + j] += static_cast<float>(direction[j] / group);
  }
}

}  // namespace

absl::StatusOr<Filters> FiltersFromProfile(const Profile& profile, int layer, const Rope& rope, double begin,
                                           double end) {
  if (layer < 0 || layer >= profile.num_layers()) {
    return absl::InvalidArgumentError(
        absl::StrCat("profile: has ", profile.num_layers(), " layers, layer ", layer, " is asked for"));
  }
  const LayerProfile& moments = profile.layers[layer];
  const int group = profile.num_q_heads / profile.num_kv_heads;
  const Rope layout = LayoutOf(profile, rope);
  Filters filters(static_cast<size_t>(profile.num_kv_heads) * profile.head_dim);
  for (int q = 0; q < profile.num_q_heads; ++q) {
    Eigen::VectorXd direction =
        LeadingEigenvector(CarryMoment(InLayout(moments.q_moment[q], layout, rope), rope, begin, end));
    if (direction.dot(CarryMean(InLayout(moments.q_mean[q], layout, rope), rope, begin, end)) < 0)
      direction = -direction;
    AddShare(direction, q / group, group, &filters);
  }
  return filters;
}

Filters FiltersFromQueries(const float* queries, int64_t count, int num_kv_heads, int group, int head_dim) {
  using Rows =
      Eigen::Map<const Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>, 0, Eigen::OuterStride<>>;
  const int num_q_heads = num_kv_heads * group;
  Filters filters(static_cast<size_t>(num_kv_heads) * head_dim);
  for (int q = 0; q < num_q_heads; ++q) {
    const Rows rows(queries + static_cast<size_t>(q) * head_dim, count, head_dim,
                    Eigen::OuterStride<>(num_q_heads * head_dim));
    const Eigen::MatrixXd x = rows.cast<double>();
    Eigen::VectorXd direction = LeadingEigenvector(x.transpose() * x);
    if ((x * direction).sum() < 0) direction = -direction;
    AddShare(direction, q / group, group, &filters);
  }
  return filters;
}

absl::StatusOr<std::vector<Filters>> ReadFilters(const std::string& path, bool negated, int num_layers,
                                                 int num_kv_heads, int head_dim) {
  absl::StatusOr<TensorFile> file = TensorFile::Read(path);
  if (!file.ok()) return file.status();
  absl::StatusOr<TensorFile::Tensor> tensor = file->Get("q_filters");
  if (!tensor.ok()) return tensor.status();
  const std::vector<int64_t> wanted = {num_layers, num_kv_heads, head_dim};
  if (tensor->shape != wanted) {
    return absl::InvalidArgumentError(absl::StrCat("filters: ", path, " does not hold [", num_layers, " layers, ",
                                                   num_kv_heads, " KV heads, ", head_dim, "]"));
  }
  absl::StatusOr<std::vector<float>> values = TensorFile::ToFloat32(*tensor);
  if (!values.ok()) return values.status();
  const size_t size = static_cast<size_t>(num_kv_heads) * head_dim;
  std::vector<Filters> filters;
  for (int layer = 0; layer < num_layers; ++layer) {
    Filters& one = filters.emplace_back(values->begin() + layer * size, values->begin() + (layer + 1) * size);
    for (float& x : one) {
      if (!(x - x == 0)) return absl::InvalidArgumentError(absl::StrCat("filters: ", path, " holds NaN or infinity"));
      if (negated) x = -x;
    }
  }
  return filters;
}

}  // namespace seine
