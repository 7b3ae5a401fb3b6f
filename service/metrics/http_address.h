// Where the HTTP listener listens (http_listener.h).
#ifndef SEINE_SERVICE_METRICS_HTTP_ADDRESS_H_
#define SEINE_SERVICE_METRICS_HTTP_ADDRESS_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace seine {

// "HOST:PORT" of metrics.listen. INVALID_ARGUMENT saying why an address is not taken.
absl::StatusOr<std::string> ParseHttpAddress(absl::string_view text);

}  // namespace seine

#endif  // SEINE_SERVICE_METRICS_HTTP_ADDRESS_H_
