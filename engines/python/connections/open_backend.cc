#include "engines/python/connections/open_backend.h"

namespace seine::python {

std::unique_ptr<Backend> OpenBackend(const std::string& name, int threads, std::string* why) {
  return MakeBackend(name, threads, why);
}

}  // namespace seine::python
