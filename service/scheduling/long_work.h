// Which calls are long work (sharing.h), by what is known before they are parsed.
#ifndef SEINE_SERVICE_SCHEDULING_LONG_WORK_H_
#define SEINE_SERVICE_SCHEDULING_LONG_WORK_H_

#include <chrono>
#include <cstdint>

#include "service/scheduling/call_costs.h"
#include "service/scheduling/sharing.h"

namespace seine {

// An append of more bytes is a part of a prefill, and more parts follow. Helpers take most of its work, so that its own
// thread may be done with it soon.
inline constexpr int64_t kPrefillBytes = 256 << 10;

inline bool IsLongWork(CostKind kind, int64_t bytes, std::chrono::nanoseconds cost) {
  return cost > kLongWork || (kind == CostKind::kAppend && bytes > kPrefillBytes);
}

}  // namespace seine

#endif  // SEINE_SERVICE_SCHEDULING_LONG_WORK_H_
