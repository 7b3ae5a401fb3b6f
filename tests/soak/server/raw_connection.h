// HTTP/2 by hand, on a Unix socket, over TCP or over TLS: for connections without calls, streams that are reset, and
// bytes that are no frames.
#ifndef SEINE_TESTS_SOAK_RAW_CONNECTION_H_
#define SEINE_TESTS_SOAK_RAW_CONNECTION_H_

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>

#include "tests/soak/server/endpoint.h"
#include "tests/soak/server/tls_stream.h"

namespace seine::soak {

class RawConnection {
 public:
  explicit RawConnection(const std::string& endpoint);  // as Endpoint::ToString
  ~RawConnection();
  RawConnection(RawConnection&& other) noexcept;
  RawConnection(const RawConnection&) = delete;

  bool Open();  // over TLS, shakes hands too
  // Sends the preface and SETTINGS, and waits for the server's first frame. False: none, or a GOAWAY, within the time.
  bool Handshake(int milliseconds);
  bool Send(const std::string& bytes) const;  // false: the server has closed, or does not read for a second
  // Sends what the server takes at once, and returns how many bytes that were.
  size_t SendNow(const std::string& bytes);
  bool closed() const { return closed_; }  // SendNow has seen the server's end of the connection
  // Reads and drops what is there. False: the server has ended the connection, or a read began with a GOAWAY.
  bool Drain() const;
  void Take(size_t bytes) const;  // the same, of at most so many bytes

  static constexpr uint8_t kData = 0, kResetStream = 3;  // types of frames
  static std::string Frame(uint8_t type, uint8_t flags, uint32_t stream, const std::string& payload);
  static std::string Headers(uint32_t stream, const std::string& path);  // of a gRPC call
  // Such a call, cancelled at once.
  static std::string OpenedAndReset(uint32_t stream, const std::string& path = "/seine.v1.RetrievalService/Decode");
  static std::string Message(const std::string& bytes);  // one of gRPC's, of at most 16 KB

 private:
  bool Connect();
  bool ConnectToPath(const std::string& path);
  bool ConnectToPort(int port);
  ssize_t Receive(void* bytes, size_t most) const;  // as recv with MSG_DONTWAIT
  ssize_t SendSome(const std::string& bytes, size_t from) const;
  Endpoint endpoint_;
  int fd_ = -1;
  bool closed_ = false;
  std::string left_;                // of a packet that SendNow has begun
  std::unique_ptr<TlsStream> tls_;  // null: none
};

}  // namespace seine::soak

#endif  // SEINE_TESTS_SOAK_RAW_CONNECTION_H_
