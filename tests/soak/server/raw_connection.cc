#include "tests/soak/server/raw_connection.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace seine::soak {
namespace {

constexpr char kPreface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
constexpr char kUnix[] = "unix:";
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

RawConnection::RawConnection(const std::string& endpoint) : endpoint_(Endpoint::Parse(endpoint)) {}
RawConnection::RawConnection(RawConnection&& other) noexcept
    : endpoint_(other.endpoint_), fd_(std::exchange(other.fd_, -1)), tls_(std::move(other.tls_)) {}

RawConnection::~RawConnection() {
  if (fd_ >= 0) close(fd_);
}

bool RawConnection::Open() {
  if (!Connect()) return false;
  fcntl(fd_, F_SETFL, O_NONBLOCK);
  if (endpoint_.folder.empty()) return true;
  tls_ = TlsStream::Connect(fd_);
  return tls_ != nullptr;
}

bool RawConnection::Connect() {
  return endpoint_.address.rfind(kUnix, 0) == 0 ? ConnectToPath(endpoint_.address.substr(sizeof(kUnix) - 1))
                                                : ConnectToPort(endpoint_.port());
}

bool RawConnection::ConnectToPath(const std::string& path) {
  fd_ = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_un to{};
  to.sun_family = AF_UNIX;
  memcpy(to.sun_path, path.data(), path.size());
  return fd_ >= 0 && connect(fd_, reinterpret_cast<const sockaddr*>(&to), sizeof(to)) == 0;
}

bool RawConnection::ConnectToPort(int port) {
  fd_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<uint16_t>(port));
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return fd_ >= 0 && connect(fd_, reinterpret_cast<const sockaddr*>(&to), sizeof(to)) == 0;
}

ssize_t RawConnection::Receive(void* bytes, size_t most) const {
  return tls_ != nullptr ? tls_->Receive(bytes, most) : recv(fd_, bytes, most, MSG_DONTWAIT);
}

ssize_t RawConnection::SendSome(const std::string& bytes, size_t from) const {
  const size_t count = bytes.size() - from;
  return tls_ != nullptr ? tls_->Send(bytes.data() + from, count)
                         : send(fd_, bytes.data() + from, count, MSG_NOSIGNAL | MSG_DONTWAIT);
}

bool RawConnection::Handshake(int milliseconds) {
  if (!Send(kPreface + Frame(kSettings, 0, 0, ""))) return false;
  char header[128];
  ssize_t count = -1;
  while ((count = Receive(header, sizeof(header))) < 0) {  // TLS has messages of its own first
    pollfd wait{fd_, POLLIN, 0};
    if (poll(&wait, 1, milliseconds) != 1) return false;
    if ((wait.revents & POLLIN) == 0) return false;
  }
  if (count < 9 || header[3] != kSettings) return false;
  const size_t next = 9 + (static_cast<uint8_t>(header[1]) << 8) + static_cast<uint8_t>(header[2]);
  return count < static_cast<ssize_t>(next + 9) || header[next + 3] != kGoAway;
}

bool RawConnection::Send(const std::string& bytes) const {
  size_t sent = 0;
  while (sent < bytes.size()) {
    pollfd wait{fd_, POLLOUT, 0};
    if (poll(&wait, 1, 1000) != 1) return false;
    const ssize_t count = SendSome(bytes, sent);
    if (count == 0 || (count < 0 && tls_ == nullptr)) return false;
    sent += static_cast<size_t>(std::max<ssize_t>(0, count));
  }
  return true;
}

size_t RawConnection::SendNow(const std::string& bytes) {
  // What a full socket took in part goes on with the next call: the caller's packets are whole frames.
  const std::string& next = left_.empty() ? bytes : left_;
  size_t sent = 0;
  while (sent < next.size()) {
    const ssize_t count = SendSome(next, sent);
    if (count <= 0) {
      closed_ = tls_ != nullptr ? count == 0 : errno != EAGAIN;
      break;
    }
    sent += static_cast<size_t>(count);
  }
  left_ = next.substr(sent);
  return sent;
}

bool RawConnection::Drain() const {
  char bytes[65536];
  ssize_t count = 0;
  bool open = true;
  while ((count = Receive(bytes, sizeof(bytes))) > 0) open = open && !(count >= 9 && bytes[3] == kGoAway);
  return open && count < 0;
}

void RawConnection::Take(size_t bytes) const {
  std::string taken(bytes, '\0');
  [[maybe_unused]] const ssize_t count = Receive(taken.data(), bytes);
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
