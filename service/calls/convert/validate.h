// Checks of what a request carries, before anything is allocated or changed: tensors against the index's geometry,
// handles, positions. Views point into the request's bytes; only queries that are not fp32 are converted, into a given
// scratch. Errors name the field by its path in the request ("item.keys.shape") and say what was expected.
#ifndef SEINE_SERVICE_CALLS_CONVERT_VALIDATE_H_
#define SEINE_SERVICE_CALLS_CONVERT_VALIDATE_H_

#include <initializer_list>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "index/index.h"
#include "index/types.h"
#include "seine/v1/common.pb.h"

namespace seine {

inline constexpr int64_t kMaxDim = int64_t{1} << 31;  // of a tensor's shape
inline constexpr int kMaxBatchItems = 4096;           // items, or appends, of one request
inline constexpr int64_t kMaxSets = 1 << 16;          // of positions that an item gives

inline constexpr int64_t kAnyDim = -1;

// A tensor where it lies: in its message, or in the memory of a caller in this process. Owns nothing.
struct TensorBytes {
  TensorBytes() = default;
  TensorBytes(v1::DType type, absl::Span<const int64_t> dims, absl::string_view bytes)
      : dtype(type), shape(dims), raw(bytes) {}
  TensorBytes(const v1::Tensor& tensor)  // NOLINT(google-explicit-constructor)
      : TensorBytes(tensor.dtype(), {tensor.shape().data(), static_cast<size_t>(tensor.shape_size())}, tensor.raw()) {}

  v1::DType dtype = v1::D_TYPE_UNSPECIFIED;
  absl::Span<const int64_t> shape;
  absl::string_view raw;   // little-endian, row-major
  bool on_device = false;  // of a caller in this process, as its default stream leaves it; the host cannot read `raw`
};

// Known dtype, every dimension in [0, kMaxDim], shape equal to `expected` (kAnyDim: free), product of dimensions times
// element size equal to the raw bytes.
absl::Status CheckTensor(const TensorBytes& tensor, std::initializer_list<int64_t> expected, absl::string_view field);

// Keys or values of an append: [tokens, num_kv_heads, head_dim] in the index's dtype; of either memory.
absl::StatusOr<TensorView> TokensView(const TensorBytes& tensor, const Geometry& geometry, absl::string_view field);

// Queries [num_q_heads, head_dim], or a prompt's [tokens, num_q_heads, head_dim], of any float dtype as fp32: in place,
// or converted into `scratch`, which then must outlive the use. What is not finite stays so; the index refuses it.
// `prompt_tokens`: 0 where it is no prompt's.
absl::StatusOr<const float*> QueriesView(const TensorBytes& tensor, const Geometry& geometry, absl::string_view field,
                                         std::vector<float>* scratch, int64_t* prompt_tokens);

// The same for any shape of at least one element (kAnyDim: free), in the host's memory alone.
absl::StatusOr<const float*> FloatsView(const TensorBytes& tensor, std::initializer_list<int64_t> expected,
                                        absl::string_view field, std::vector<float>* scratch);

// fp32 of that shape on a device, where it lies.
absl::StatusOr<const float*> DeviceFloats(const TensorBytes& tensor, std::initializer_list<int64_t> expected,
                                          absl::string_view field);

// Positions [sets, width], each row ended by -1 where it is shorter, as one vector a row.
absl::Status PositionSets(const TensorBytes& tensor, absl::string_view field, std::vector<std::vector<int32_t>>* sets);

// Positions [count] as int32, in place.
absl::StatusOr<absl::Span<const int32_t>> PositionsView(const v1::Tensor& tensor, absl::string_view field);

}  // namespace seine

#endif  // SEINE_SERVICE_CALLS_CONVERT_VALIDATE_H_
