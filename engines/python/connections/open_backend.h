// The backend that an index of this process runs on, by its name. The module that tests drive has a device of its own
// (engines/python/device_tests).
#ifndef SEINE_ENGINES_PYTHON_CONNECTIONS_OPEN_BACKEND_H_
#define SEINE_ENGINES_PYTHON_CONNECTIONS_OPEN_BACKEND_H_

#include <memory>
#include <string>

#include "kernels/backend.h"

namespace seine::python {

// The backend of this name, with so many threads of the host, as MakeBackend has them; nullptr with the reason in *why.
// Safe from any thread.
std::unique_ptr<Backend> OpenBackend(const std::string& name, int threads, std::string* why);

}  // namespace seine::python

#endif  // SEINE_ENGINES_PYTHON_CONNECTIONS_OPEN_BACKEND_H_
