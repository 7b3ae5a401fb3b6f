// Endpoints, as client.h names them. Internal to client/.
#ifndef SEINE_CLIENT_CHANNEL_ENDPOINT_H_
#define SEINE_CLIENT_CHANNEL_ENDPOINT_H_

#include <string>

#include "absl/status/status.h"

namespace seine::client {

// INVALID_ARGUMENT for an endpoint of another form than client.h names.
absl::Status CheckEndpoint(const std::string& endpoint);

// The path of a Unix socket's endpoint; empty: the endpoint is of another kind.
std::string SocketPath(const std::string& endpoint);

}  // namespace seine::client

#endif  // SEINE_CLIENT_CHANNEL_ENDPOINT_H_
