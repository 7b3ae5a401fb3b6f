// Where a server listens: a Unix socket or a TCP port (listener.h).
#ifndef SEINE_SERVICE_TRANSPORT_SOCKETS_ADDRESS_H_
#define SEINE_SERVICE_TRANSPORT_SOCKETS_ADDRESS_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace seine {

struct Address {
  std::string unix_path;  // of a Unix socket; empty: TCP
  std::string host;
  int port = 0;                  // 0: any free one
  bool beyond_loopback = false;  // other machines may reach it
  std::string ToString() const;  // as gRPC takes it: unix:/path or host:port
};

// unix:/path, unix:///path, host:port or [v6]:port. INVALID_ARGUMENT for another form.
absl::StatusOr<Address> ParseAddress(absl::string_view text);

// $XDG_RUNTIME_DIR/seine.sock where that folder is one's own, else /tmp/seine-<uid>/seine.sock; as an address. Nobody
// else may write to either folder: /tmp is everybody's, and who owns a socket there is given all that clients send.
std::string DefaultAddress();
// Makes the folder of a default address in /tmp. FAILED_PRECONDITION where it is another's.
absl::Status MakeDefaultFolder(const Address& address);

}  // namespace seine

#endif  // SEINE_SERVICE_TRANSPORT_SOCKETS_ADDRESS_H_
