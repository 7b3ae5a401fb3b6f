// Where a server listens: a Unix socket or a loopback TCP port, and whether that place is free.
#ifndef SEINE_SERVICE_ADDRESS_H_
#define SEINE_SERVICE_ADDRESS_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace seine {

struct Address {
  std::string unix_path;  // of a Unix socket; empty: TCP
  std::string host;
  int port = 0;                  // 0: any free one
  std::string ToString() const;  // as gRPC takes it: unix:/path or host:port
};

// unix:/path, unix:///path, host:port or [v6]:port. INVALID_ARGUMENT for another form and for a host beyond loopback.
absl::StatusOr<Address> ParseAddress(absl::string_view text);

// $XDG_RUNTIME_DIR/seine.sock if that folder exists, else /tmp/seine-<uid>.sock; as an address.
std::string DefaultAddress();

// Makes sure that the place is free: removes the socket file of a server that is dead. ALREADY_EXISTS if one lives
// there, FAILED_PRECONDITION if the path is something else or its folder is missing. Between this and the bind another
// server may come: gRPC then takes the path over, so two servers must not be started on one path at the same instant.
absl::Status Claim(const Address& address);

}  // namespace seine

#endif  // SEINE_SERVICE_ADDRESS_H_
