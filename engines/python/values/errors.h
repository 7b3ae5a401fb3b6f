// Errors of Seine as Python has them: the exception NativeError, and tuples inside answers. All needs the GIL.
#ifndef SEINE_ENGINES_PYTHON_VALUES_ERRORS_H_
#define SEINE_ENGINES_PYTHON_VALUES_ERRORS_H_

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>  // in every unit alike: without it a str is no std::string

#include <string>

#include "absl/status/status.h"

namespace seine::python {

namespace nb = nanobind;

// Puts NativeError into the module.
void AddNativeError(nb::module_& module);

// (code, message, field, reason, retry_delay), or None where `status` is OK. The status is the client's (client.h).
nb::object ErrorTuple(const absl::Status& status);

[[noreturn]] void ThrowValueError(const std::string& text);

// NativeError where `status` is not OK.
void RaiseIfWrong(const absl::Status& status);

// The status of a service's call, as a client reads it off the wire.
absl::Status AsClientHasIt(const absl::Status& status);

}  // namespace seine::python

#endif  // SEINE_ENGINES_PYTHON_VALUES_ERRORS_H_
