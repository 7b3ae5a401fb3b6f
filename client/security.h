// How a client shows who it is and knows whom it talks to: TLS and a token.
#ifndef SEINE_CLIENT_SECURITY_H_
#define SEINE_CLIENT_SECURITY_H_

#include <string>

#include "absl/status/statusor.h"

namespace seine::client {

// TLS is used on TCP where tls_ca is given; a Unix socket takes none. A token goes over a Unix socket, over TLS, or to
// this machine's loopback; to another machine without TLS it is refused.
struct Security {
  std::string tls_ca = {};      // PEM file: the authority that the server's certificate comes from
  std::string tls_cert = {};    // PEM file: this client's certificate, where the server asks for one
  std::string tls_key = {};     // PEM file: the certificate's key
  std::string token = {};       // the bearer token itself, printable ASCII
  std::string token_file = {};  // or a file that holds it, read for each connection; blanks at its ends do not count
};

// What `given` leaves empty is taken from the environment: SEINE_TLS_CA, SEINE_TLS_CERT, SEINE_TLS_KEY, and, where
// neither token nor file is given, SEINE_TOKEN or SEINE_TOKEN_FILE.
Security WithEnvironment(Security given);
inline Security SecurityFromEnvironment() { return WithEnvironment({}); }

// The token, out of its file where it is in one; empty: there is none. INVALID_ARGUMENT naming the field.
absl::StatusOr<std::string> ReadToken(const Security& security);

}  // namespace seine::client

#endif  // SEINE_CLIENT_SECURITY_H_
