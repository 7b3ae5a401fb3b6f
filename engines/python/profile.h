// Profiles for Python: Rope and ProfileBuilder of _native.pyi.
#ifndef SEINE_ENGINES_PYTHON_PROFILE_H_
#define SEINE_ENGINES_PYTHON_PROFILE_H_

#include <nanobind/nanobind.h>

namespace seine::python {

// Puts the classes into the module. Needs the GIL.
void AddProfileClasses(nanobind::module_& module);

}  // namespace seine::python

#endif  // SEINE_ENGINES_PYTHON_PROFILE_H_
