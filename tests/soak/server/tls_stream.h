// TLS over a connected socket that does not block, as a stranger beyond this host would speak it: whatever certificate
// is shown, and HTTP/2 by ALPN.
#ifndef SEINE_TESTS_SOAK_SERVER_TLS_STREAM_H_
#define SEINE_TESTS_SOAK_SERVER_TLS_STREAM_H_

#include <openssl/ssl.h>
#include <sys/types.h>

#include <memory>

namespace seine::soak {

class TlsStream {
 public:
  // Shakes hands on `fd`, which stays the caller's. Null: the other side refuses, or takes longer than 5 s a step.
  static std::unique_ptr<TlsStream> Connect(int fd);

  // As recv and send with MSG_DONTWAIT: bytes; 0: it has ended; -1: none now.
  ssize_t Receive(void* bytes, size_t most);
  ssize_t Send(const void* bytes, size_t count);

 private:
  explicit TlsStream(SSL* tls) : tls_(tls, &SSL_free) {}
  bool Shake(int fd);
  ssize_t Done(int result) const;
  const std::unique_ptr<SSL, decltype(&SSL_free)> tls_;
};

}  // namespace seine::soak

#endif  // SEINE_TESTS_SOAK_SERVER_TLS_STREAM_H_
