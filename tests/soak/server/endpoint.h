// Where a soaked server listens, and how its clients reach it.
#ifndef SEINE_TESTS_SOAK_SERVER_ENDPOINT_H_
#define SEINE_TESTS_SOAK_SERVER_ENDPOINT_H_

#include <cstdint>
#include <string>
#include <vector>

namespace seine::soak {

enum class Transport : uint8_t { kUnix, kTcp, kTls };
// unix, tcp or tls.
const char* NameOf(Transport transport);

struct Endpoint {
  std::string address;  // as seined and gRPC take it: unix:/path or 127.0.0.1:PORT
  std::string folder;   // of server.pem, which signs itself, and server.key; empty: no TLS

  // One of its own in `folder`, with a certificate where it needs one. The port was free a moment ago.
  static Endpoint Make(Transport transport, const std::string& folder);
  // As a flag of a child holds it: the address, or tls:FOLDER@ADDRESS.
  std::string ToString() const;
  static Endpoint Parse(const std::string& text);

  int port() const;                        // of an address with one
  std::vector<std::string> Flags() const;  // of seined
};

int FreePort();
// Writes server.pem and server.key for 127.0.0.1. False: there is no openssl.
bool MakeCertificate(const std::string& folder);

}  // namespace seine::soak

#endif  // SEINE_TESTS_SOAK_SERVER_ENDPOINT_H_
