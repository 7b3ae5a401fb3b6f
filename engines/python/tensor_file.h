// Files of tensors for Python: TensorFile of _native.pyi.
#ifndef SEINE_ENGINES_PYTHON_TENSOR_FILE_H_
#define SEINE_ENGINES_PYTHON_TENSOR_FILE_H_

#include <nanobind/nanobind.h>

namespace seine::python {

// Puts the class into the module. Needs the GIL.
void AddTensorFile(nanobind::module_& module);

}  // namespace seine::python

#endif  // SEINE_ENGINES_PYTHON_TENSOR_FILE_H_
