// A backend that counts how long encoding and projection take, and the updates of learnt bases; all else is another
// backend's.
#ifndef SEINE_SERVICE_BACKENDS_COUNTED_BACKEND_H_
#define SEINE_SERVICE_BACKENDS_COUNTED_BACKEND_H_

#include <memory>

#include "index/counts/counts.h"
#include "kernels/backend.h"

namespace seine {

// `counts`: nullptr: returns `backend` itself.
std::unique_ptr<Backend> WithCounts(std::unique_ptr<Backend> backend, std::shared_ptr<Counts> counts);

}  // namespace seine

#endif  // SEINE_SERVICE_BACKENDS_COUNTED_BACKEND_H_
