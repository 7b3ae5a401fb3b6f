// Calls a server's method by its name and JSON: for calls that have no function in client.h.
#ifndef SEINE_CLIENT_FLEET_ASK_H_
#define SEINE_CLIENT_FLEET_ASK_H_

#include <nlohmann/json.hpp>
#include <string>

#include "absl/status/statusor.h"
#include "client/client.h"

namespace seine::client {

// Returns the answer of a method that is no stream, e.g. "GetMetrics". 64-bit numbers are strings in it. Errors of the
// call; INTERNAL where there is no answer. Thread-safe.
absl::StatusOr<nlohmann::json> Ask(Client* client, const std::string& method, const nlohmann::json& request);

}  // namespace seine::client

#endif  // SEINE_CLIENT_FLEET_ASK_H_
