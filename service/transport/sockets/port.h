// A TCP port to listen on.
#ifndef SEINE_SERVICE_TRANSPORT_SOCKETS_PORT_H_
#define SEINE_SERVICE_TRANSPORT_SOCKETS_PORT_H_

#include "absl/status/statusor.h"
#include "service/transport/sockets/address.h"

namespace seine {

// A socket bound to the address, whose port becomes the one that was taken. It waits for nothing (O_NONBLOCK) and is
// the caller's. ALREADY_EXISTS: the port is in use. INVALID_ARGUMENT: there is no such host. FAILED_PRECONDITION: the
// port cannot be had. The message is the reason alone.
absl::StatusOr<int> BindPort(Address* address);

}  // namespace seine

#endif  // SEINE_SERVICE_TRANSPORT_SOCKETS_PORT_H_
