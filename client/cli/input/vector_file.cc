// Reading queries.
#include "client/cli/input/vector_file.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/cli/base/exit_code.h"
#include "profile/io/tensor_file.h"

namespace seine::cli {
namespace {

absl::StatusOr<TensorFile::Tensor> ChooseTensor(const TensorFile& file, const std::string& name) {
  if (!name.empty()) {
    absl::StatusOr<TensorFile::Tensor> tensor = file.Get(name);
    if (!tensor.ok()) return FileError(tensor.status());
    return tensor;
  }
  if (file.names().size() == 1) return file.Get(file.names()[0]);
  return UsageError(absl::StrCat("--tensor: ", file.path(), " holds ", file.names().size(), " tensors; name one of ",
                                 absl::StrJoin(file.names(), ", ")));
}

}  // namespace

absl::StatusOr<Queries> ReadQueries(const VectorSource& source, const v1::Geometry& geometry) {
  const absl::StatusOr<TensorFile> file = TensorFile::Read(source.path);
  if (!file.ok()) return FileError(file.status());
  const absl::StatusOr<TensorFile::Tensor> tensor = ChooseTensor(*file, source.tensor);
  if (!tensor.ok()) return tensor.status();

  const int64_t heads = geometry.num_q_heads(), dim = geometry.head_dim();
  const std::string shape = absl::StrCat("[", absl::StrJoin(tensor->shape, ", "), "]");
  std::vector<int64_t> rest = tensor->shape;  // what is left of the shape once a row is taken
  int64_t row = 0;
  if (rest.size() == 3 || (rest.size() == 2 && source.row)) {
    if (!source.row && rest[0] != 1) {
      return UsageError(
          absl::StrCat("--row: ", source.path, " has the shape ", shape, "; choose one of ", rest[0], " rows"));
    }
    row = source.row.value_or(0);
    if (row < 0 || row >= rest[0]) return UsageError(absl::StrCat("--row: ", row, " is not in [0, ", rest[0], ")"));
    rest.erase(rest.begin());
  } else if (source.row) {
    return UsageError(absl::StrCat("--row: ", source.path, " has the shape ", shape, ", which has no rows"));
  }

  const bool whole = rest == std::vector<int64_t>{heads, dim};
  const bool single = rest == std::vector<int64_t>{dim};
  if (!whole && !single) {
    return FileError(absl::InvalidArgumentError(absl::StrCat(
        source.path, ": queries of the shape ", shape, " do not fit the index, which takes [", heads, ", ", dim, "]")));
  }
  if (whole && source.head) return UsageError("--head: is for a file that holds a single vector");
  if (single && !source.head && heads > 1) {
    return UsageError(absl::StrCat("--head: say to which of the ", heads, " query heads the vector belongs"));
  }
  const int64_t count = whole ? heads * dim : dim;
  const absl::StatusOr<std::vector<float>> values = TensorFile::ToFloat32(*tensor, row * count, count);
  if (!values.ok())
    return FileError(absl::Status(values.status().code(), absl::StrCat(source.path, ": ", values.status().message())));
  if (whole) return Queries{*values, std::nullopt};

  const int head = source.head.value_or(0);
  if (head < 0 || head >= heads) return UsageError(absl::StrCat("--head: ", head, " is not in [0, ", heads, ")"));
  Queries queries{std::vector<float>(heads * dim, 0.0f), head};
  std::copy(values->begin(), values->end(), queries.values.begin() + head * dim);
  return queries;
}

}  // namespace seine::cli
