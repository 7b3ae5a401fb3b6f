#include "service/transport/sockets/connections.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace seine {
namespace {

// The connection's name as gRPC 1.51 makes it. Of a link-local address of IPv6 it makes another: nobody finds that.
std::string PeerName(int fd) {
  sockaddr_storage address{};
  socklen_t length = sizeof(address);
  const bool known = getpeername(fd, reinterpret_cast<sockaddr*>(&address), &length) == 0;
  char host[INET6_ADDRSTRLEN] = "";
  if (known && address.ss_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(address);
    inet_ntop(AF_INET, &v4.sin_addr, host, sizeof(host));
    return absl::StrCat("ipv4:", host, ":", ntohs(v4.sin_port));
  }
  if (known && address.ss_family == AF_INET6) {
    const auto& v6 = reinterpret_cast<const sockaddr_in6&>(address);
    const bool mapped = IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr) != 0;
    inet_ntop(mapped ? AF_INET : AF_INET6, v6.sin6_addr.s6_addr + (mapped ? 12 : 0), host, sizeof(host));
    return mapped ? absl::StrCat("ipv4:", host, ":", ntohs(v6.sin6_port))
                  : absl::StrCat("ipv6:%5B", host, "%5D:", ntohs(v6.sin6_port));
  }
  return absl::StrCat("fd:", fd);
}

void Discard(int connection) {
  char bytes[16 << 10];
  while (recv(connection, bytes, sizeof(bytes), MSG_DONTWAIT) > 0) {
  }
}

}  // namespace

Connections::Client Connections::ClientOf(int fd) {
  sockaddr_storage address{};
  socklen_t length = sizeof(address);
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&address), &length) != 0) return {};
  const auto bytes = [](const auto& host) { return std::string(reinterpret_cast<const char*>(&host), sizeof(host)); };
  if (address.ss_family == AF_INET) return {0, bytes(reinterpret_cast<const sockaddr_in&>(address).sin_addr)};
  if (address.ss_family == AF_INET6) return {0, bytes(reinterpret_cast<const sockaddr_in6&>(address).sin6_addr)};
  ucred owner{};
  length = sizeof(owner);
  return {getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &owner, &length) == 0 ? owner.pid : 0, ""};
}

Connections::Connections() : epoll_(epoll_create1(EPOLL_CLOEXEC)) {}

Connections::~Connections() {
  for (const auto& [fd, connection] : open_) close(fd);
  if (epoll_ >= 0) close(epoll_);
}

void Connections::Add(int connection) {
  const int fd = fcntl(connection, F_DUPFD_CLOEXEC, 0);
  if (fd < 0) return;  // it is served all the same
  const std::lock_guard<std::mutex> lock(mutex_);
  Connection& added = open_[fd];
  added.name = PeerName(connection);
  added.client = ClientOf(connection);
  added.unsent_since = std::chrono::steady_clock::now();
  names_[added.name] = fd;
  epoll_event event{};  // the end alone: EPOLLHUP and EPOLLERR always come
  event.data.fd = fd;
  epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event);
}

void Connections::Sweep() {
  epoll_event events[64];
  const std::lock_guard<std::mutex> lock(mutex_);
  const int count = epoll_wait(epoll_, events, 64, 0);
  for (int i = 0; i < count; ++i) {
    const int fd = events[i].data.fd;
    epoll_ctl(epoll_, EPOLL_CTL_DEL, fd, nullptr);  // gRPC's descriptor may keep the socket alive yet
    const auto gone = open_.find(fd);
    if (const auto named = names_.find(gone->second.name); named != names_.end() && named->second == fd)
      names_.erase(named);
    open_.erase(gone);
    close(fd);
  }
}

int Connections::CutUnread(std::chrono::steady_clock::duration time) {
  const auto now = std::chrono::steady_clock::now();
  int cut = 0;
  const std::lock_guard<std::mutex> lock(mutex_);
  for (auto& [fd, connection] : open_) {
    int bytes = 0;
    if (ioctl(fd, SIOCOUTQ, &bytes) != 0) continue;
    if (bytes == 0 || bytes != connection.unsent) {
      connection.unsent = bytes;
      connection.unsent_since = now;
    } else if (now - connection.unsent_since >= time) {
      shutdown(fd, SHUT_RDWR);
      ++cut;
    }
  }
  cut_unread_ += cut;
  return cut;
}

void Connections::End() {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& [fd, connection] : open_) shutdown(fd, SHUT_RDWR);
}

bool Connections::Ended(const std::string& peer, CallEnd end) {
  const auto now = std::chrono::steady_clock::now();
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto named = names_.find(peer);
  if (named == names_.end()) return false;  // it is gone
  const int fd = named->second;
  Connection& connection = open_[fd];
  if (!connection.resets.Count(end, now, CutsOf(connection.client, now))) return false;
  names_.erase(named);  // what else has come of it counts no more
  CutFlood(fd, now);
  return true;
}

int Connections::CutsOf(const Client& client, Time now) const {
  if (floods_.empty()) return 0;
  const auto flood = floods_.find(client);
  return flood == floods_.end() || now - flood->second.last >= kRemembered ? 0 : flood->second.cuts;
}

void Connections::CutFlood(int fd, Time now) {
  std::erase_if(floods_, [now](const auto& client) { return now - client.second.last >= kRemembered; });
  Flood& flood = floods_[open_[fd].client];
  flood.cuts = std::min(flood.cuts + 1, ResetWindow::kMostHalvings);
  flood.last = now;
  shutdown(fd, SHUT_RDWR);
  Discard(fd);  // thousands of calls may have come that gRPC has not seen
  ++cut_resets_;
}

bool Connections::Refuses(int connection) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (floods_.empty()) return false;
  const Client client = ClientOf(connection);
  const auto flood = floods_.find(client);
  return client.process != 0 && flood != floods_.end() &&
         std::chrono::steady_clock::now() - flood->second.last < kRefusedFor;
}

int64_t Connections::count() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return static_cast<int64_t>(open_.size());
}

}  // namespace seine
