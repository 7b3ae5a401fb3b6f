// Files of tensors for Python: TensorFile of _native.pyi.
#ifndef SEINE_ENGINES_PYTHON_TENSOR_FILE_H_
#define SEINE_ENGINES_PYTHON_TENSOR_FILE_H_

#include <nanobind/nanobind.h>

#include <string>

#include "absl/status/status.h"

namespace seine::python {

// Puts the class into the module. All of this needs the GIL.
void AddTensorFile(nanobind::module_& module);

// A path of Python's: str, bytes or PathLike.
std::string FileName(nanobind::handle path);
// A status of a file as Python has it: OSError where it cannot be read or written, ValueError where it is wrong.
void RaiseIfWrongFile(const absl::Status& status);

}  // namespace seine::python

#endif  // SEINE_ENGINES_PYTHON_TENSOR_FILE_H_
