// Bases to and from a file (calibrate.h).
#include <cmath>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "index/subspace/calibrate.h"
#include "profile/io/tensor_file.h"
#include "profile/io/tensor_writer.h"

namespace seine {

namespace {

constexpr char kFormat[] = "seine-bases-1";
constexpr double kMaxSkew = 1e-3;

absl::Status Wrong(const std::string& path, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(path, ": ", what));
}

OutputTensor TensorOf(const std::string& name, const std::vector<Basis>& heads) {
  OutputTensor tensor;
  tensor.name = name;
  const int dim = heads[0].head_dim, rank = heads[0].rank;
  tensor.shape = {static_cast<int64_t>(heads.size()), dim, rank};
  for (const Basis& basis : heads) {
    for (int i = 0; i < dim; ++i) {
      tensor.bytes.append(reinterpret_cast<const char*>(&basis.u[static_cast<size_t>(i) * basis.stride()]),
                          rank * sizeof(float));
    }
  }
  return tensor;
}

absl::StatusOr<std::vector<Basis>> HeadsOf(const TensorFile& file, const std::string& name) {
  const auto tensor = file.Get(name);
  if (!tensor.ok()) return Wrong(file.path(), absl::StrCat("has no tensor ", name));
  const std::vector<int64_t>& shape = tensor->shape;
  if (shape.size() != 3 || shape[0] < 1 || shape[1] < 16 || shape[1] > kMaxHeadDim || shape[1] % 16 != 0 ||
      shape[2] < 1 || shape[2] > shape[1]) {
    return Wrong(file.path(), absl::StrCat(name, " has shape [", absl::StrJoin(shape, ", "),
                                           "], not [num_kv_heads, head_dim, rank]"));
  }
  const auto numbers = TensorFile::ToFloat32(*tensor);
  if (!numbers.ok()) return Wrong(file.path(), absl::StrCat(name, ": ", numbers.status().message()));
  const auto rows = static_cast<Eigen::Index>(shape[1]), columns = static_cast<Eigen::Index>(shape[2]);
  std::vector<Basis> heads;
  for (int64_t h = 0; h < shape[0]; ++h) {
    const Eigen::Map<const Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>> u(
        numbers->data() + h * rows * columns, rows, columns);
    if (!u.allFinite()) return Wrong(file.path(), absl::StrCat(name, " holds NaN or infinity"));
    heads.push_back(FromEigen(u.cast<double>(), 0));
    if (OrthonormalityError(heads.back()) > kMaxSkew) {
      return Wrong(file.path(), absl::StrCat(name, ": the columns of KV head ", h, " are not orthonormal"));
    }
  }
  return heads;
}

}  // namespace

absl::Status WriteBases(const BasesFile& bases, const std::string& path) {
  std::vector<OutputTensor> tensors;
  for (size_t l = 0; l < bases.layers.size(); ++l) {
    tensors.push_back(TensorOf(absl::StrCat("layers.", l, ".key_basis"), bases.layers[l].keys));
    tensors.push_back(TensorOf(absl::StrCat("layers.", l, ".value_basis"), bases.layers[l].values));
  }
  return WriteTensors(tensors, {{"format", kFormat}, {"frame", Name(bases.frame)}, {"model", bases.model}}, path);
}

absl::StatusOr<BasesFile> ReadBases(const std::string& path) {
  const auto file = TensorFile::Read(path);
  if (!file.ok()) return file.status();
  const auto value = [&file](const char* key) {
    const auto it = file->metadata().find(key);
    return it == file->metadata().end() ? std::string() : it->second;
  };
  if (value("format") != kFormat) {
    return Wrong(path, absl::StrCat("is no file of bases: format is \"", value("format"), "\", not ", kFormat));
  }
  BasesFile bases;
  const absl::StatusOr<KeyFrame> frame = KeyFrameOf(value("frame"));
  if (!frame.ok()) return Wrong(path, frame.status().message());
  bases.frame = *frame;
  bases.model = value("model");
  for (size_t l = 0; l < file->names().size() / 2; ++l) {
    auto keys = HeadsOf(*file, absl::StrCat("layers.", l, ".key_basis"));
    if (!keys.ok()) return keys.status();
    auto values = HeadsOf(*file, absl::StrCat("layers.", l, ".value_basis"));
    if (!values.ok()) return values.status();
    if (keys->size() != values->size() || (*keys)[0].head_dim != (*values)[0].head_dim) {
      return Wrong(path, absl::StrCat("layer ", l, ": keys and values differ in heads or head_dim"));
    }
    bases.layers.push_back({*std::move(keys), *std::move(values)});
  }
  if (bases.layers.empty()) return Wrong(path, "holds no layer");
  return bases;
}

}  // namespace seine
