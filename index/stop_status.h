// What a call answers that its token has stopped (kernels/stop.h).
#ifndef SEINE_INDEX_STOP_STATUS_H_
#define SEINE_INDEX_STOP_STATUS_H_

#include "absl/status/status.h"

namespace seine {

// OK while the current call goes on; else CANCELLED, DEADLINE_EXCEEDED, or UNAVAILABLE where the server ends.
absl::Status StopStatus();

}  // namespace seine

#endif  // SEINE_INDEX_STOP_STATUS_H_
