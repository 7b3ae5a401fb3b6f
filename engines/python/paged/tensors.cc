#include "engines/python/paged/tensors.h"

#include "absl/strings/str_cat.h"
#include "engines/python/values/errors.h"

namespace seine::python {

HostTensor TensorOf(nb::handle object, absl::string_view name, size_t dims) {
  HostTensor tensor;
  if (!nb::try_cast(object, tensor, /*convert=*/false)) {
    ThrowValueError(absl::StrCat(name, ": must be an array or tensor in the host's memory"));
  }
  if (tensor.ndim() != dims) ThrowValueError(absl::StrCat(name, ": must have ", dims, " dimensions"));
  return tensor;
}

std::vector<int64_t> IntegersOf(nb::handle object, absl::string_view name) {
  const HostTensor tensor = TensorOf(object, name, 1);
  const auto count = static_cast<int64_t>(tensor.shape(0));
  std::vector<int64_t> out(count);
  const auto copy = [&](const auto* from) {
    for (int64_t i = 0; i < count; ++i) out[i] = from[i * tensor.stride(0)];
  };
  if (tensor.dtype() == nb::dtype<int32_t>()) {
    copy(static_cast<const int32_t*>(tensor.data()));
  } else if (tensor.dtype() == nb::dtype<int64_t>()) {
    copy(static_cast<const int64_t*>(tensor.data()));
  } else {
    ThrowValueError(absl::StrCat(name, ": must be int32 or int64"));
  }
  return out;
}

DType FloatsOf(const HostTensor& tensor, absl::string_view name) {
  const nb::dlpack::dtype type = tensor.dtype();
  if (type == nb::dtype<float>()) return DType::kFloat32;
  if (type.lanes == 1 && type.bits == 16) {
    if (type.code == static_cast<uint8_t>(nb::dlpack::dtype_code::Float)) return DType::kFloat16;
    if (type.code == static_cast<uint8_t>(nb::dlpack::dtype_code::Bfloat)) return DType::kBFloat16;
  }
  ThrowValueError(absl::StrCat(name, ": must be float32, float16 or bfloat16"));
}

}  // namespace seine::python
