// Arrays and tensors of the engine, read where they lie. What is wrong is a ValueError that names the argument. All
// needs the GIL.
#ifndef SEINE_ENGINES_PYTHON_PAGED_TENSORS_H_
#define SEINE_ENGINES_PYTHON_PAGED_TENSORS_H_

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>  // in every unit alike: without it a str is no std::string

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/strings/string_view.h"
#include "kernels/types.h"

namespace seine::python {

namespace nb = nanobind;

using HostTensor = nb::ndarray<nb::device::cpu>;  // NOLINT(misc-include-cleaner)

// `object` as an array of `dims` dimensions in the host's memory, whatever its elements.
HostTensor TensorOf(nb::handle object, absl::string_view name, size_t dims);

// A copy of int32 or int64 [count].
std::vector<int64_t> IntegersOf(nb::handle object, absl::string_view name);

// The type of elements that are float32, float16 or bfloat16.
DType FloatsOf(const HostTensor& tensor, absl::string_view name);

}  // namespace seine::python

#endif  // SEINE_ENGINES_PYTHON_PAGED_TENSORS_H_
