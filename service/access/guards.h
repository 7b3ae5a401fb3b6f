// Which servers may be started: what stands between a network and the indexes.
#ifndef SEINE_SERVICE_ACCESS_GUARDS_H_
#define SEINE_SERVICE_ACCESS_GUARDS_H_

#include <string>

#include "absl/status/status.h"
#include "service/access/access.h"
#include "service/access/tls_files.h"
#include "service/transport/sockets/address.h"

namespace seine {

// Asked before any file is read. INVALID_ARGUMENT naming the setting: a TCP address beyond loopback without TLS or
// without credentials, TLS on a Unix socket, half of TLS, quotas without credentials.
absl::Status CheckGuards(const Address& address, const TlsOptions& tls, const AccessOptions& access);

// Asked once the files are read. INVALID_ARGUMENT: beyond loopback there is no credential in the file; certificates are
// mapped to tenants, but TLS asks for none.
absl::Status CheckCredentials(const Address& address, const TlsOptions& tls, const Access& access);

// One line for whoever starts the server: who may come in. `access`: null where no call needs a credential.
std::string WhoMayComeIn(const Address& address, const TlsOptions& tls, const Access* access,
                         const std::string& unix_calls);

}  // namespace seine

#endif  // SEINE_SERVICE_ACCESS_GUARDS_H_
