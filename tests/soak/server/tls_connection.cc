#include "tests/soak/server/tls_connection.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/soak/server/raw_connection.h"

namespace seine::soak {
namespace {

constexpr unsigned char kHttp2[] = "\x02h2";
constexpr char kOpening[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
constexpr uint8_t kSettingsFrame = 4, kGoAwayFrame = 7;

int ConnectToPort(int port) {
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<uint16_t>(port));
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (connect(fd, reinterpret_cast<const sockaddr*>(&to), sizeof(to)) == 0) {
    fcntl(fd, F_SETFL, O_NONBLOCK);
    return fd;
  }
  close(fd);
  return -1;
}

}  // namespace

TlsConnection::TlsConnection(int port)
    : context_(SSL_CTX_new(TLS_client_method()), &SSL_CTX_free), tls_(SSL_new(context_.get()), &SSL_free) {
  fd_ = ConnectToPort(port);
  if (fd_ < 0) return;
  SSL_set_fd(tls_.get(), fd_);
  SSL_set_alpn_protos(tls_.get(), kHttp2, sizeof(kHttp2) - 1);
  int result = 0;
  while ((result = SSL_connect(tls_.get())) != 1) {
    if (!Wait(result)) return;
  }
  open_ = true;
  Send(kOpening + RawConnection::Frame(kSettingsFrame, 0, 0, ""));
}

TlsConnection::~TlsConnection() {
  if (fd_ >= 0) close(fd_);
}

bool TlsConnection::Wait(int result) {
  const int error = SSL_get_error(tls_.get(), result);
  if (error != SSL_ERROR_WANT_READ && error != SSL_ERROR_WANT_WRITE) return false;
  pollfd wait{fd_, static_cast<short>(error == SSL_ERROR_WANT_READ ? POLLIN : POLLOUT), 0};
  return poll(&wait, 1, 5000) == 1;
}

// A GOAWAY is looked for where a read begins: a front sends it by itself.
void TlsConnection::Drain() {
  unsigned char bytes[16384];
  int count = 0;
  while ((count = SSL_read(tls_.get(), bytes, sizeof(bytes))) > 0) {
    if (count >= 9 && bytes[3] == kGoAwayFrame) open_ = false;
  }
  const int error = SSL_get_error(tls_.get(), count);
  if (error != SSL_ERROR_WANT_READ && error != SSL_ERROR_WANT_WRITE) open_ = false;
}

bool TlsConnection::Send(const std::string& bytes) {
  Drain();
  int result = 0;
  while (open_ && (result = SSL_write(tls_.get(), bytes.data(), static_cast<int>(bytes.size()))) <= 0) {
    open_ = Wait(result);
  }
  return open_;
}

}  // namespace seine::soak
