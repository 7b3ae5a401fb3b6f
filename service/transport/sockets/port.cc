#include "service/transport/sockets/port.h"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"

namespace seine {

absl::StatusOr<int> BindPort(Address* address) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  const int error = getaddrinfo(address->host.c_str(), std::to_string(address->port).c_str(), &hints, &found);
  if (error != 0) return absl::InvalidArgumentError(absl::StrCat(address->host, ": ", gai_strerror(error)));
  const absl::Cleanup free_found = [found] { freeaddrinfo(found); };
  int bound = -1, failed = EAFNOSUPPORT;
  for (const addrinfo* a = found; a != nullptr && bound < 0; a = a->ai_next) {
    const int fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, a->ai_protocol);
    if (fd < 0) continue;  // a family that this machine lacks
    const int on = 1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));  // a port in TIME_WAIT is free
    if (bind(fd, a->ai_addr, a->ai_addrlen) == 0) {
      bound = fd;
    } else {
      failed = errno;
      close(fd);
    }
  }
  if (bound < 0 && failed == EADDRINUSE) {
    return absl::AlreadyExistsError(absl::StrCat(address->ToString(), " is in use"));
  }
  const auto refused = [address](int why) {
    return absl::FailedPreconditionError(
        absl::StrCat(address->ToString(), ": ", why == EACCES ? "not permitted" : std::strerror(why)));
  };
  if (bound < 0) return refused(failed);
  sockaddr_storage taken{};
  socklen_t length = sizeof(taken);
  if (getsockname(bound, reinterpret_cast<sockaddr*>(&taken), &length) != 0) {
    failed = errno;
    close(bound);
    return refused(failed);
  }
  address->port = ntohs(taken.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(taken).sin6_port
                                                    : reinterpret_cast<const sockaddr_in&>(taken).sin_port);
  return bound;
}

}  // namespace seine
