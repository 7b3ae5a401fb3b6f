// Where a server is, as client/client.h takes it and the file of a fleet names it.
#ifndef SEINE_PROFILE_IO_ENDPOINT_H_
#define SEINE_PROFILE_IO_ENDPOINT_H_

#include <string>

#include "absl/status/status.h"

namespace seine {

// INVALID_ARGUMENT for an endpoint of another form than unix:///path, unix:path, a path with a slash in it, or
// host:port.
absl::Status CheckEndpoint(const std::string& endpoint);

// The path of a Unix socket's endpoint; empty: the endpoint is of another kind.
std::string SocketPath(const std::string& endpoint);

// Whether an endpoint host:port is of this machine alone.
bool IsLoopback(const std::string& endpoint);

}  // namespace seine

#endif  // SEINE_PROFILE_IO_ENDPOINT_H_
