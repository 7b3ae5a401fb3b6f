// What a service manager is told of the server's state (systemd's Type=notify and WatchdogSec=): datagrams to the
// socket that NOTIFY_SOCKET names, as sd_notify(3) describes them. Written here, for libsystemd would bring seven
// libraries into the wheel. Without NOTIFY_SOCKET nothing is told.
#ifndef SEINE_SERVICE_PROCESS_NOTIFY_H_
#define SEINE_SERVICE_PROCESS_NOTIFY_H_

#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace seine {

// Thread-safe.
class Notifier {
 public:
  // Reads NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID.
  Notifier();
  ~Notifier();
  Notifier(const Notifier&) = delete;
  Notifier& operator=(const Notifier&) = delete;

  // Lines such as "READY=1". UNAVAILABLE: there is a manager and it cannot be told.
  absl::Status Notify(const std::string& lines) const;
  // The manager is told that the server takes its settings anew (systemd 253 wants the time).
  absl::Status TellReloading() const;

  bool managed() const { return fd_ >= 0; }
  // Within this time the manager wants to hear of the server; zero: it does not ask.
  absl::Duration watchdog() const { return watchdog_; }

 private:
  int fd_ = -1;
  std::string why_not_;  // of a socket that could not be taken
  absl::Duration watchdog_ = absl::ZeroDuration();
};

}  // namespace seine

#endif  // SEINE_SERVICE_PROCESS_NOTIFY_H_
