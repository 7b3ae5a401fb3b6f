#include "service/address.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace seine {
namespace {

bool IsLoopback(const std::string& host) {
  if (host == "localhost") return true;
  in_addr v4;
  if (inet_pton(AF_INET, host.c_str(), &v4) == 1) return (ntohl(v4.s_addr) >> 24) == 127;
  in6_addr v6;
  return inet_pton(AF_INET6, host.c_str(), &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6);
}

sockaddr_un UnixAddress(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  memcpy(address.sun_path, path.data(), path.size());
  return address;
}

absl::Status ClaimSocketFile(const std::string& path) {
  struct stat info;
  if (lstat(path.c_str(), &info) != 0) {
    if (errno != ENOENT) return absl::FailedPreconditionError(absl::StrCat("listen: ", path, ": ", strerror(errno)));
    const auto folder = std::filesystem::absolute(path).parent_path();
    std::error_code ignored;
    if (std::filesystem::is_directory(folder, ignored)) return absl::OkStatus();
    return absl::FailedPreconditionError(absl::StrCat("listen: no such folder: ", folder.string()));
  }
  if (!S_ISSOCK(info.st_mode)) return absl::FailedPreconditionError(absl::StrCat("listen: ", path, " is not a socket"));
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return absl::InternalError(absl::StrCat("socket: ", strerror(errno)));
  const absl::Cleanup close_fd = [fd] { close(fd); };
  const sockaddr_un address = UnixAddress(path);
  // Refused: nobody listens behind the file any more. Anything else (connected, queue full, no permission): somebody
  // does.
  if (connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0 || errno != ECONNREFUSED) {
    return absl::AlreadyExistsError(absl::StrCat("listen: unix:", path, " is in use by another server"));
  }
  if (unlink(path.c_str()) == 0 || errno == ENOENT) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("listen: cannot remove ", path, ": ", strerror(errno)));
}

// gRPC's own message for a port in use goes to its log; asking the kernel first gives one clear line.
absl::Status ClaimPort(const Address& address) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  const int error = getaddrinfo(address.host.c_str(), std::to_string(address.port).c_str(), &hints, &found);
  if (error != 0) return absl::InvalidArgumentError(absl::StrCat("listen: ", address.host, ": ", gai_strerror(error)));
  const absl::Cleanup free_found = [found] { freeaddrinfo(found); };
  for (const addrinfo* a = found; a != nullptr; a = a->ai_next) {
    const int fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol);
    if (fd < 0) continue;  // a family that this machine lacks
    const int on = 1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));  // as gRPC does: a port in TIME_WAIT is free
    const int failed = bind(fd, a->ai_addr, a->ai_addrlen) == 0 ? 0 : errno;
    close(fd);
    if (failed == EADDRINUSE)
      return absl::AlreadyExistsError(absl::StrCat("listen: ", address.ToString(), " is in use"));
    if (failed == EACCES)
      return absl::FailedPreconditionError(absl::StrCat("listen: ", address.ToString(), ": not permitted"));
  }
  return absl::OkStatus();
}

}  // namespace

std::string Address::ToString() const {
  if (!unix_path.empty()) return absl::StrCat("unix:", unix_path);
  return absl::StrContains(host, ':') ? absl::StrCat("[", host, "]:", port) : absl::StrCat(host, ":", port);
}

absl::StatusOr<Address> ParseAddress(absl::string_view text) {
  Address address;
  absl::string_view rest = text;
  const bool bare_path = absl::StartsWith(text, "/") || (absl::StrContains(text, '/') && !absl::StrContains(text, ':'));
  if (bare_path || absl::ConsumePrefix(&rest, "unix:")) {
    if (!bare_path) absl::ConsumePrefix(&rest, "//");
    address.unix_path = std::string(rest);
    if (rest.empty()) return absl::InvalidArgumentError("listen: unix: without a path");
    if (rest.size() >= sizeof(sockaddr_un{}.sun_path)) {
      return absl::InvalidArgumentError(
          absl::StrCat("listen: path longer than ", sizeof(sockaddr_un{}.sun_path) - 1, " bytes"));
    }
    return address;
  }
  const size_t colon = rest.rfind(':');
  if (colon == absl::string_view::npos || !absl::SimpleAtoi(rest.substr(colon + 1), &address.port) ||
      address.port < 0 || address.port > 65535) {
    return absl::InvalidArgumentError(absl::StrCat("listen: '", text, "' is neither unix:PATH nor HOST:PORT"));
  }
  absl::string_view host = rest.substr(0, colon);
  if (absl::ConsumePrefix(&host, "[")) absl::ConsumeSuffix(&host, "]");
  address.host = std::string(host);
  if (!IsLoopback(address.host)) {
    return absl::InvalidArgumentError(
        absl::StrCat("listen: ", text,
                     " is beyond this machine's loopback, and TLS and authentication are not there yet: "
                     "listen on 127.0.0.1, [::1] or a Unix socket, and forward to it"));
  }
  return address;
}

std::string DefaultAddress() {
  const char* runtime = std::getenv("XDG_RUNTIME_DIR");
  std::error_code ignored;
  if (runtime != nullptr && *runtime != '\0' && std::filesystem::is_directory(runtime, ignored)) {
    return absl::StrCat("unix:", runtime, "/seine.sock");
  }
  return absl::StrCat("unix:/tmp/seine-", getuid(), ".sock");
}

absl::Status Claim(const Address& address) {
  return address.unix_path.empty() ? ClaimPort(address) : ClaimSocketFile(address.unix_path);
}

}  // namespace seine
