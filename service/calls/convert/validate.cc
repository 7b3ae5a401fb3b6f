#include "service/calls/convert/validate.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "index/storage/to_floats.h"
#include "service/calls/convert/convert.h"
#include "service/calls/convert/wire_enum.h"
#include "service/fields/error.h"

namespace seine {
namespace {

static_assert(std::endian::native == std::endian::little,
              "tensors travel as little-endian bytes and are used in place");

std::string ShapeText(absl::Span<const int64_t> shape) {
  return absl::StrCat("[",
                      absl::StrJoin(shape, ", ",
                                    [](std::string* out, int64_t dim) {
                                      dim == kAnyDim ? absl::StrAppend(out, "any") : absl::StrAppend(out, dim);
                                    }),
                      "]");
}

std::string Sub(absl::string_view field, absl::string_view name) { return absl::StrCat(field, ".", name); }

size_t ElementSize(v1::DType dtype) { return dtype == v1::D_TYPE_FLOAT32 || dtype == v1::D_TYPE_INT32 ? 4 : 2; }

absl::Status DTypeMismatch(const TensorBytes& tensor, absl::string_view expected, absl::string_view field) {
  return FieldError("DTYPE_MISMATCH", Sub(field, "dtype"),
                    absl::StrCat("expected ", expected, ", got ", v1::DType_Name(tensor.dtype)));
}

absl::Status CheckOnHost(const TensorBytes& tensor, absl::string_view field) {
  if (!tensor.on_device) return absl::OkStatus();
  return FieldError("ON_DEVICE", field, "lies in a device's memory, and is read by the host");
}

}  // namespace

absl::Status CheckTensor(const TensorBytes& tensor, std::initializer_list<int64_t> expected, absl::string_view field) {
  if (tensor.dtype == v1::D_TYPE_UNSPECIFIED || !v1::DType_IsValid(tensor.dtype)) {
    return FieldError("UNKNOWN_DTYPE", Sub(field, "dtype"), "not given, or none that this server knows");
  }
  const absl::Span<const int64_t> shape = tensor.shape;
  const bool fits = std::equal(shape.begin(), shape.end(), expected.begin(), expected.end(),
                               [](int64_t got, int64_t want) { return want == kAnyDim || got == want; });
  if (!fits) {
    // A shape of any length comes from outside: only its beginning is repeated.
    return FieldError("SHAPE_MISMATCH", Sub(field, "shape"),
                      absl::StrCat("expected ", ShapeText(expected), ", got ",
                                   ShapeText(shape.first(std::min<size_t>(shape.size(), 8))),
                                   shape.size() > 8 ? absl::StrCat(" and ", shape.size() - 8, " more") : ""));
  }
  uint64_t bytes = ElementSize(tensor.dtype);
  for (const int64_t dim : shape) {
    if (dim < 0 || dim > kMaxDim) {
      return FieldError("SHAPE_LIMIT", Sub(field, "shape"),
                        absl::StrCat("dimension ", dim, " is not in [0, ", kMaxDim, "]"));
    }
    if (__builtin_mul_overflow(bytes, static_cast<uint64_t>(dim), &bytes)) {
      return FieldError("SHAPE_LIMIT", Sub(field, "shape"), "the product of the dimensions overflows 64 bits");
    }
  }
  if (bytes != tensor.raw.size()) {
    return FieldError(
        "BYTES_MISMATCH", Sub(field, "raw"),
        absl::StrCat("expected ", bytes, " bytes for shape ", ShapeText(shape), ", got ", tensor.raw.size()));
  }
  return absl::OkStatus();
}

absl::StatusOr<TensorView> TokensView(const TensorBytes& tensor, const Geometry& geometry, absl::string_view field) {
  if (absl::Status s = CheckTensor(tensor, {kAnyDim, geometry.num_kv_heads, geometry.head_dim}, field); !s.ok())
    return s;
  if (tensor.dtype != ToProto(geometry.dtype)) {
    return DTypeMismatch(tensor, absl::StrCat("the index's ", v1::DType_Name(ToProto(geometry.dtype))), field);
  }
  if (tensor.shape[0] == 0) return FieldError("EMPTY", Sub(field, "shape"), "no tokens");
  return TensorView{tensor.raw.data(), tensor.shape[0], tensor.raw.size(), tensor.on_device};
}

absl::StatusOr<const float*> QueriesView(const TensorBytes& tensor, const Geometry& geometry, absl::string_view field,
                                         std::vector<float>* scratch, int64_t* prompt_tokens) {
  const bool of_prompt = tensor.shape.size() == 3;
  *prompt_tokens = of_prompt ? tensor.shape[0] : 0;
  if (of_prompt) return FloatsView(tensor, {kAnyDim, geometry.num_q_heads, geometry.head_dim}, field, scratch);
  return FloatsView(tensor, {geometry.num_q_heads, geometry.head_dim}, field, scratch);
}

absl::StatusOr<const float*> FloatsView(const TensorBytes& tensor, std::initializer_list<int64_t> expected,
                                        absl::string_view field, std::vector<float>* scratch) {
  if (absl::Status s = CheckTensor(tensor, expected, field); !s.ok()) return s;
  if (absl::Status s = CheckOnHost(tensor, field); !s.ok()) return s;
  if (tensor.dtype == v1::D_TYPE_INT32) return DTypeMismatch(tensor, "a float type", field);
  const size_t count = tensor.raw.size() / ElementSize(tensor.dtype);
  if (count == 0) return FieldError("EMPTY", Sub(field, "shape"), "no elements");
  const char* raw = tensor.raw.data();
  const float* values = reinterpret_cast<const float*>(raw);
  if (tensor.dtype != v1::D_TYPE_FLOAT32 || reinterpret_cast<uintptr_t>(raw) % alignof(float) != 0) {
    scratch->resize(count);
    values = scratch->data();
    DType dtype = DType::kFloat32;
    if (auto s = FromWire(tensor.dtype, v1::DType_IsValid, Sub(field, "dtype"), &dtype); !s.ok()) return s;
    ToFloats(dtype, raw, count, scratch->data());
  }
  return values;
}

absl::StatusOr<const float*> DeviceFloats(const TensorBytes& tensor, std::initializer_list<int64_t> expected,
                                          absl::string_view field) {
  if (absl::Status s = CheckTensor(tensor, expected, field); !s.ok()) return s;
  if (tensor.dtype != v1::D_TYPE_FLOAT32) return DTypeMismatch(tensor, "D_TYPE_FLOAT32, on a device", field);
  if (!tensor.on_device) return FieldError("ON_HOST", field, "lies in the host's memory, and others on a device");
  const auto* values = reinterpret_cast<const float*>(tensor.raw.data());
  if (reinterpret_cast<uintptr_t>(values) % alignof(float) == 0) return values;
  return FieldError("MISALIGNED", field, "does not lie at a multiple of 4 bytes");
}

absl::Status PositionSets(const TensorBytes& tensor, absl::string_view field, std::vector<std::vector<int32_t>>* sets) {
  if (absl::Status s = CheckTensor(tensor, {kAnyDim, kAnyDim}, field); !s.ok()) return s;
  if (absl::Status s = CheckOnHost(tensor, field); !s.ok()) return s;
  if (tensor.dtype != v1::D_TYPE_INT32) return DTypeMismatch(tensor, "D_TYPE_INT32", field);
  if (tensor.shape[0] > kMaxSets) {
    return FieldError("SHAPE_LIMIT", Sub(field, "shape"), absl::StrCat("more than ", kMaxSets, " sets"));
  }
  const size_t width = tensor.shape[1];
  const char* row = tensor.raw.data();
  sets->resize(tensor.shape[0]);
  for (std::vector<int32_t>& set : *sets) {
    set.resize(width);
    if (width > 0) std::memcpy(set.data(), row, width * sizeof(int32_t));  // a caller's array may be unaligned
    set.erase(std::find(set.begin(), set.end(), -1), set.end());
    row += width * sizeof(int32_t);
  }
  return absl::OkStatus();
}

absl::StatusOr<absl::Span<const int32_t>> PositionsView(const v1::Tensor& tensor, absl::string_view field) {
  if (absl::Status s = CheckTensor(tensor, {kAnyDim}, field); !s.ok()) return s;
  if (tensor.dtype() != v1::D_TYPE_INT32) return DTypeMismatch(tensor, "D_TYPE_INT32", field);
  // std::string's bytes are aligned for any scalar: heap blocks to 16, the in-place buffer to 8.
  return absl::MakeConstSpan(reinterpret_cast<const int32_t*>(tensor.raw().data()), tensor.shape(0));
}

}  // namespace seine
