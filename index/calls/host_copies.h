// Tensors of a caller on a device, brought to the host, where rows are checked and kept.
#ifndef SEINE_INDEX_CALLS_HOST_COPIES_H_
#define SEINE_INDEX_CALLS_HOST_COPIES_H_

#include <deque>

#include "absl/status/statusor.h"
#include "index/context.h"
#include "index/memory/memory.h"
#include "index/types.h"

namespace seine {

// Not thread-safe. What it gives lives as long as it does.
class HostCopies {
 public:
  explicit HostCopies(const Context* context) : context_(*context) {}
  // The tensor itself where it lies on the host. INVALID_ARGUMENT naming the field: the backend has no device that
  // attends, or there is no data. RESOURCE_EXHAUSTED, UNAVAILABLE.
  absl::StatusOr<TensorView> Of(const char* field, const TensorView& tensor);

 private:
  const Context& context_;
  std::deque<Memory> held_;  // page-locked
};

}  // namespace seine

#endif  // SEINE_INDEX_CALLS_HOST_COPIES_H_
