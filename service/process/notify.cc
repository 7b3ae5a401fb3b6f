#include "service/process/notify.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace seine {
namespace {

std::string Variable(const char* name) {
  const char* value = getenv(name);
  return value != nullptr ? value : "";
}

absl::Duration AskedWatchdog() {
  int64_t microseconds = 0, pid = 0;
  if (!absl::SimpleAtoi(Variable("WATCHDOG_USEC"), &microseconds) || microseconds <= 0) return absl::ZeroDuration();
  const std::string whose = Variable("WATCHDOG_PID");
  if (!whose.empty() && (!absl::SimpleAtoi(whose, &pid) || pid != getpid())) return absl::ZeroDuration();
  return absl::Microseconds(microseconds);
}

}  // namespace

Notifier::Notifier() {
  const std::string path = Variable("NOTIFY_SOCKET");
  if (path.empty()) return;
  sockaddr_un to = {};
  to.sun_family = AF_UNIX;
  if ((path[0] != '/' && path[0] != '@') || path.size() >= sizeof(to.sun_path)) {
    why_not_ = "NOTIFY_SOCKET is no path of a Unix socket";
    return;
  }
  std::memcpy(to.sun_path, path.data(), path.size());
  if (path[0] == '@') to.sun_path[0] = 0;  // an abstract name
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size());
  fd_ = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd_ < 0 || connect(fd_, reinterpret_cast<const sockaddr*>(&to), size) != 0) {
    why_not_ = absl::StrCat("NOTIFY_SOCKET ", path, ": ", std::strerror(errno));
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
    return;
  }
  watchdog_ = AskedWatchdog();
}

Notifier::~Notifier() {
  if (fd_ >= 0) close(fd_);
}

absl::Status Notifier::Notify(const std::string& lines) const {
  if (!why_not_.empty()) return absl::UnavailableError(why_not_);
  if (fd_ < 0) return absl::OkStatus();
  // A manager that does not read is not waited for.
  if (send(fd_, lines.data(), lines.size(), MSG_NOSIGNAL | MSG_DONTWAIT) >= 0) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("the service manager was not told: ", std::strerror(errno)));
}

absl::Status Notifier::TellReloading() const {
  timespec now = {};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return Notify(absl::StrCat("RELOADING=1\nMONOTONIC_USEC=", now.tv_sec * int64_t{1000000} + now.tv_nsec / 1000));
}

}  // namespace seine
