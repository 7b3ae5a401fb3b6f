// HTTP/2 by hand on a Unix socket: for connections without calls, streams that are reset, and bytes that are no frames.
#ifndef SEINE_TESTS_SOAK_RAW_CONNECTION_H_
#define SEINE_TESTS_SOAK_RAW_CONNECTION_H_

#include <cstdint>
#include <string>

namespace seine::soak {

class RawConnection {
 public:
  explicit RawConnection(const std::string& address);  // unix:/path
  ~RawConnection();
  RawConnection(RawConnection&& other) noexcept;
  RawConnection(const RawConnection&) = delete;

  bool Open();
  // Sends the preface and SETTINGS, and waits for the server's first frame. False: none, or a GOAWAY, within the time.
  bool Handshake(int milliseconds);
  bool Send(const std::string& bytes) const;  // false: the server has closed, or does not read for a second
  void Drain() const;                         // reads and drops what is there
  void Take(size_t bytes) const;              // the same, of at most so many bytes

  static constexpr uint8_t kData = 0, kResetStream = 3;  // types of frames
  static std::string Frame(uint8_t type, uint8_t flags, uint32_t stream, const std::string& payload);
  static std::string Headers(uint32_t stream, const std::string& path);  // of a gRPC call
  // Such a call, cancelled at once.
  static std::string OpenedAndReset(uint32_t stream, const std::string& path = "/seine.v1.RetrievalService/Decode");
  static std::string Message(const std::string& bytes);  // one of gRPC's, of at most 16 KB

 private:
  std::string path_;
  int fd_ = -1;
};

}  // namespace seine::soak

#endif  // SEINE_TESTS_SOAK_RAW_CONNECTION_H_
