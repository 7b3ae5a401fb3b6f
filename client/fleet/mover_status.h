// What those that move families read in statuses, and add to them.
#ifndef SEINE_CLIENT_FLEET_MOVER_STATUS_H_
#define SEINE_CLIENT_FLEET_MOVER_STATUS_H_

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "client/client.h"

namespace seine::client {

// Between two askings of who has not answered, each twice as long as the one before.
inline constexpr absl::Duration kFirstWait = absl::Milliseconds(20), kLongestWait = absl::Seconds(1);

// Returns the error with more of what happened. Its payloads, and so its reason, stay.
inline absl::Status After(const absl::Status& error, absl::string_view what) {
  absl::Status longer(error.code(), absl::StrCat(error.message(), "; ", what));
  error.ForEachPayload([&](absl::string_view url, const absl::Cord& value) { longer.SetPayload(url, value); });
  return longer;
}

// Whether a call may have been carried out: nobody has refused it.
inline bool MayHaveEnded(const absl::Status& error) {
  const bool no_answer = absl::IsUnavailable(error) || absl::IsDeadlineExceeded(error) || absl::IsCancelled(error);
  return no_answer && ReasonOf(error).empty();
}

}  // namespace seine::client

#endif  // SEINE_CLIENT_FLEET_MOVER_STATUS_H_
