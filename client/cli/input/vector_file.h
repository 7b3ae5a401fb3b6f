// Queries for `seine query` out of a .npy or safetensors file, brought to [num_q_heads, head_dim].
#ifndef SEINE_CLIENT_CLI_INPUT_VECTOR_FILE_H_
#define SEINE_CLIENT_CLI_INPUT_VECTOR_FILE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/types.h"
#include "seine/v1/index_service.pb.h"

namespace seine::cli {

struct VectorSource {
  std::string path;
  std::string tensor;          // of a safetensors file; empty: the file's only one
  std::optional<int64_t> row;  // of a leading dimension
  std::optional<int> head;     // the query head that a single vector belongs to
};

struct Queries {
  std::vector<float> values;  // [num_q_heads, head_dim]; zeros for other heads where `head` is set
  std::optional<int> head;    // only this query head was given
};

// Shapes taken: [num_q_heads, head_dim]; [rows, num_q_heads, head_dim] with a row; [head_dim], or [rows, head_dim] with
// a row, with a head. Errors name the file or the flag and are FileError or UsageError.
absl::StatusOr<Queries> ReadQueries(const VectorSource& source, const v1::Geometry& geometry);

}  // namespace seine::cli

#endif  // SEINE_CLIENT_CLI_INPUT_VECTOR_FILE_H_
