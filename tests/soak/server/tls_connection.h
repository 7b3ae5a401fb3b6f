// HTTP/2 by hand over TLS, as a stranger beyond this host would send it. What it takes for frames is in
// raw_connection.h.
#ifndef SEINE_TESTS_SOAK_SERVER_TLS_CONNECTION_H_
#define SEINE_TESTS_SOAK_SERVER_TLS_CONNECTION_H_

#include <openssl/ssl.h>

#include <memory>
#include <string>

namespace seine::soak {

class TlsConnection {
 public:
  // To 127.0.0.1:`port`; whatever certificate is shown. Sends the preface and SETTINGS.
  explicit TlsConnection(int port);
  ~TlsConnection();
  TlsConnection(const TlsConnection&) = delete;
  TlsConnection& operator=(const TlsConnection&) = delete;

  bool open() const { return open_; }
  // Drops what has come, and sends. False: the other side has closed, said GOAWAY, or takes nothing for 5 s.
  bool Send(const std::string& bytes);

 private:
  bool Wait(int result);  // for what TLS wants next; false: nothing more comes of it
  void Drain();

  std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)> context_;
  std::unique_ptr<SSL, decltype(&SSL_free)> tls_;
  int fd_ = -1;
  bool open_ = false;
};

}  // namespace seine::soak

#endif  // SEINE_TESTS_SOAK_SERVER_TLS_CONNECTION_H_
