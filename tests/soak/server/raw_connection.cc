#include "tests/soak/server/raw_connection.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <utility>

namespace seine::soak {
namespace {

constexpr char kPreface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
constexpr uint8_t kHeaders = 1, kSettings = 4, kGoAway = 7;

// A literal header field that is not indexed, its name and value as they are (RFC 7541, 6.2.2).
std::string Literal(const std::string& name, const std::string& value) {
  const auto length = [](const std::string& text) {
    std::string out;
    size_t left = text.size();
    if (left < 127) return std::string(1, static_cast<char>(left));
    out += '\x7f';
    for (left -= 127; left >= 128; left /= 128) out += static_cast<char>(left % 128 + 128);
    return out + static_cast<char>(left);
  };
  return std::string(1, '\0') + length(name) + name + length(value) + value;
}

}  // namespace

RawConnection::RawConnection(const std::string& address) : path_(address.substr(address.find(':') + 1)) {}
RawConnection::RawConnection(RawConnection&& other) noexcept : path_(other.path_), fd_(std::exchange(other.fd_, -1)) {}

RawConnection::~RawConnection() {
  if (fd_ >= 0) close(fd_);
}

bool RawConnection::Open() {
  fd_ = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  memcpy(address.sun_path, path_.data(), path_.size());
  return fd_ >= 0 && connect(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
}

bool RawConnection::Handshake(int milliseconds) {
  if (!Send(kPreface + Frame(kSettings, 0, 0, ""))) return false;
  pollfd wait{fd_, POLLIN, 0};
  if (poll(&wait, 1, milliseconds) != 1) return false;
  char header[128];
  const ssize_t count = recv(fd_, header, sizeof(header), 0);
  if (count < 9 || header[3] != kSettings) return false;
  const size_t next = 9 + (static_cast<uint8_t>(header[1]) << 8) + static_cast<uint8_t>(header[2]);
  return count < static_cast<ssize_t>(next + 9) || header[next + 3] != kGoAway;
}

bool RawConnection::Send(const std::string& bytes) const {
  size_t sent = 0;
  while (sent < bytes.size()) {
    pollfd wait{fd_, POLLOUT, 0};
    if (poll(&wait, 1, 1000) != 1) return false;
    const ssize_t count = send(fd_, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count <= 0) return false;
    sent += static_cast<size_t>(count);
  }
  return true;
}

void RawConnection::Drain() const {
  char bytes[65536];
  while (recv(fd_, bytes, sizeof(bytes), MSG_DONTWAIT) > 0) {
  }
}

void RawConnection::Take(size_t bytes) const {
  std::string taken(bytes, '\0');
  [[maybe_unused]] const ssize_t count = recv(fd_, taken.data(), bytes, MSG_DONTWAIT);
}

std::string RawConnection::Message(const std::string& bytes) {
  std::string message(1, '\0');  // not compressed
  for (const int shift : {24, 16, 8, 0}) message += static_cast<char>(bytes.size() >> shift);
  return message + bytes;
}

std::string RawConnection::Frame(uint8_t type, uint8_t flags, uint32_t stream, const std::string& payload) {
  std::string frame;
  for (const int shift : {16, 8, 0}) frame += static_cast<char>(payload.size() >> shift);
  frame += static_cast<char>(type);
  frame += static_cast<char>(flags);
  for (const int shift : {24, 16, 8, 0}) frame += static_cast<char>(stream >> shift);
  return frame + payload;
}

std::string RawConnection::Headers(uint32_t stream, const std::string& path) {
  const std::string block = Literal(":method", "POST") + Literal(":scheme", "http") + Literal(":path", path) +
                            Literal(":authority", "localhost") + Literal("te", "trailers") +
                            Literal("content-type", "application/grpc");
  return Frame(kHeaders, /*END_HEADERS*/ 4, stream, block);
}

std::string RawConnection::OpenedAndReset(uint32_t stream, const std::string& path) {
  return Headers(stream, path) + Frame(kResetStream, 0, stream, std::string("\0\0\0\x08", 4));
}

}  // namespace seine::soak
