// A backend that hands out zeros: what a buffer held before, be it another tenant's, is gone before it is used again.
#ifndef SEINE_SERVICE_ACCESS_ZEROING_BACKEND_H_
#define SEINE_SERVICE_ACCESS_ZEROING_BACKEND_H_

#include <memory>

#include "kernels/backend.h"

namespace seine {

// All else is `backend`'s. An index belongs to one tenant and cuts its slabs itself, so memory passes from tenant to
// tenant through Allocate alone.
std::unique_ptr<Backend> WithZeroedMemory(std::unique_ptr<Backend> backend);

}  // namespace seine

#endif  // SEINE_SERVICE_ACCESS_ZEROING_BACKEND_H_
