// Errors of the service: an absl::Status whose payloads are the google.rpc details (ErrorInfo, BadRequest, RetryInfo)
// that travel in the grpc-status-details-bin trailer or inside an answer. The message opens with the wrong field of the
// request.
#ifndef SEINE_SERVICE_FIELDS_ERROR_H_
#define SEINE_SERVICE_FIELDS_ERROR_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "seine/v1/status.pb.h"

namespace seine {

// Text of a request as errors quote it, in quotes: at most 200 bytes of it, cut between characters, and what cannot be
// printed escaped. Errors travel in a trailer, and no client takes one of many kilobytes.
std::string Quoted(absl::string_view text);

// The text on one line: what cannot be printed is escaped. For errors that repeat what a file or a flag says.
std::string OneLine(absl::string_view text);

// "field: what", with `reason` (e.g. SHAPE_MISMATCH) for machines. `field` is a path in the request: item.keys.shape.
// At most 400 bytes of `what` are told, whatever it quotes.
absl::Status FieldError(absl::string_view reason, absl::string_view field, absl::string_view what,
                        absl::StatusCode code = absl::StatusCode::kInvalidArgument);

// RESOURCE_EXHAUSTED that a later try may not meet; with a delay of 0 one that trying again does not mend.
absl::Status TooMuchInFlight();  // RESOURCE_EXHAUSTED: in_flight.h has no room
absl::Status Overloaded(absl::string_view reason, absl::string_view what, absl::Duration retry_delay);

// UNAVAILABLE, reason MOVING: a family takes no changes while it moves. Trying again soon may do.
absl::Status Moving(absl::string_view family);
// FAILED_PRECONDITION, reason MOVED: another node serves the family. Metadata: node, address, generation.
absl::Status Moved(absl::string_view family, const std::string& node, const std::string& address, uint64_t generation);

// UNAVAILABLE, reason DRAINING: the server takes no new families. Another node of the fleet may.
absl::Status Draining();

absl::Status NoMemory();  // an allocation failed

// Gives an error of the index the request's view: the field that its payload names (profile/field_error.h) stands
// inside `prefix`, which may be empty, and details are added. OK and errors that have details already pass unchanged.
absl::Status Explain(const absl::Status& status, absl::string_view prefix);

// As it travels: code, message and every payload as an Any.
void ToProto(const absl::Status& status, v1::Status* out);

}  // namespace seine

#endif  // SEINE_SERVICE_FIELDS_ERROR_H_
