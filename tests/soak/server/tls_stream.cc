#include "tests/soak/server/tls_stream.h"

#include <poll.h>

#include <algorithm>

namespace seine::soak {
namespace {

constexpr unsigned char kHttp2[] = "\x02h2";
constexpr int kStepMs = 5000;

// One for all: thousands of connections would each take some hundred kilobytes.
SSL_CTX* Context() {
  static SSL_CTX* const context = [] {
    SSL_CTX* const made = SSL_CTX_new(TLS_client_method());
    SSL_CTX_set_mode(made,
                     SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER | SSL_MODE_RELEASE_BUFFERS);
    SSL_CTX_set_alpn_protos(made, kHttp2, sizeof(kHttp2) - 1);
    return made;
  }();
  return context;
}

}  // namespace

std::unique_ptr<TlsStream> TlsStream::Connect(int fd) {
  std::unique_ptr<TlsStream> stream(new TlsStream(SSL_new(Context())));
  SSL_set_fd(stream->tls_.get(), fd);
  return stream->Shake(fd) ? std::move(stream) : nullptr;
}

bool TlsStream::Shake(int fd) {
  int result = 0;
  while ((result = SSL_connect(tls_.get())) != 1) {
    const int error = SSL_get_error(tls_.get(), result);
    if (error != SSL_ERROR_WANT_READ && error != SSL_ERROR_WANT_WRITE) return false;
    pollfd wait{fd, static_cast<short>(error == SSL_ERROR_WANT_READ ? POLLIN : POLLOUT), 0};
    if (poll(&wait, 1, kStepMs) != 1) return false;
  }
  return true;
}

ssize_t TlsStream::Done(int result) const {
  if (result > 0) return result;
  const int error = SSL_get_error(tls_.get(), result);
  return error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE ? -1 : 0;
}

ssize_t TlsStream::Receive(void* bytes, size_t most) {
  return Done(SSL_read(tls_.get(), bytes, static_cast<int>(most)));
}

ssize_t TlsStream::Send(const void* bytes, size_t count) {
  return Done(SSL_write(tls_.get(), bytes, static_cast<int>(count)));
}

}  // namespace seine::soak
