#include "service/transport/connections.h"

#include <fcntl.h>
#include <linux/sockios.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

namespace seine {

Connections::Connections() : epoll_(epoll_create1(EPOLL_CLOEXEC)) {}

Connections::~Connections() {
  for (const auto& [fd, unsent] : open_) close(fd);
  if (epoll_ >= 0) close(epoll_);
}

void Connections::Add(int connection) {
  const int fd = fcntl(connection, F_DUPFD_CLOEXEC, 0);
  if (fd < 0) return;  // it is served all the same
  const std::lock_guard<std::mutex> lock(mutex_);
  open_[fd].since = std::chrono::steady_clock::now();
  epoll_event event{};  // the end alone: EPOLLHUP and EPOLLERR always come
  event.data.fd = fd;
  epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event);
}

void Connections::Sweep() {
  epoll_event events[64];
  const std::lock_guard<std::mutex> lock(mutex_);
  const int count = epoll_wait(epoll_, events, 64, 0);
  for (int i = 0; i < count; ++i) {
    epoll_ctl(epoll_, EPOLL_CTL_DEL, events[i].data.fd, nullptr);  // gRPC's descriptor may keep the socket alive yet
    open_.erase(events[i].data.fd);
    close(events[i].data.fd);
  }
}

int Connections::CutUnread(std::chrono::steady_clock::duration time) {
  const auto now = std::chrono::steady_clock::now();
  int cut = 0;
  const std::lock_guard<std::mutex> lock(mutex_);
  for (auto& [fd, unsent] : open_) {
    int bytes = 0;
    if (ioctl(fd, SIOCOUTQ, &bytes) != 0) continue;
    if (bytes == 0 || bytes != unsent.bytes) {
      unsent = {bytes, now};
    } else if (now - unsent.since >= time) {
      shutdown(fd, SHUT_RDWR);
      ++cut;
    }
  }
  return cut;
}

int64_t Connections::count() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return static_cast<int64_t>(open_.size());
}

}  // namespace seine
