#include "index/stop_status.h"

#include "kernels/stop.h"

namespace seine {

absl::Status StopStatus() {
  switch (current_stop_token == nullptr ? StopReason::kNone : current_stop_token->reason()) {
    case StopReason::kNone:
      return absl::OkStatus();
    case StopReason::kCancelled:
      return absl::CancelledError("the call was cancelled");
    case StopReason::kDeadline:
      return absl::DeadlineExceededError("the deadline passed while the call was at work");
    case StopReason::kShutdown:
      return absl::UnavailableError("the server is shutting down");
  }
  return absl::InternalError("stop: unknown reason");
}

}  // namespace seine
