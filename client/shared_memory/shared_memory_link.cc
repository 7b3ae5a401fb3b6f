#include "client/shared_memory/shared_memory_link.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace seine::client {
namespace {

absl::Status NoChannel(absl::string_view what, int error) {
  return absl::UnavailableError(absl::StrCat("no same-host channel: ", what, ": ", strerror(error)));
}

// The descriptor that comes with the welcome.
absl::StatusOr<int> ReceiveMemory(int socket) {
  char welcome = 0;
  iovec bytes = {&welcome, sizeof(welcome)};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message = {};
  message.msg_iov = &bytes;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  ssize_t got = 0;
  do {
    got = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
  } while (got < 0 && errno == EINTR);
  if (got < 0) return NoChannel("the server does not answer", errno == EAGAIN ? ETIMEDOUT : errno);
  if (got == 0) {
    return absl::PermissionDeniedError(
        "no same-host channel: the server has turned this process away; its log says why");
  }
  const cmsghdr* const head = CMSG_FIRSTHDR(&message);
  if (head == nullptr || head->cmsg_level != SOL_SOCKET || head->cmsg_type != SCM_RIGHTS ||
      head->cmsg_len != CMSG_LEN(sizeof(int))) {
    return absl::InternalError("no same-host channel: the server has sent no memory");
  }
  int memory = -1;
  memcpy(&memory, CMSG_DATA(head), sizeof(memory));
  if (welcome == channel::kWelcome) return memory;
  close(memory);
  return absl::InternalError("no same-host channel: the server speaks another protocol");
}

}  // namespace

absl::StatusOr<std::unique_ptr<SharedMemoryLink>> SharedMemoryLink::Open(const std::string& path,
                                                                         const std::string& token, int64_t ring_bytes,
                                                                         absl::Duration timeout) {
  if (!channel::IsRingSize(ring_bytes) || token.size() != channel::kTokenBytes) {
    return absl::InternalError("no same-host channel: the server's offer makes no sense");
  }
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return NoChannel("socket", errno);
  std::unique_ptr<SharedMemoryLink> link(new SharedMemoryLink(fd, static_cast<uint32_t>(ring_bytes)));
  if (absl::Status s = link->Connect(path, timeout); !s.ok()) return s;
  if (send(fd, token.data(), token.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(token.size())) {
    return NoChannel("the server does not listen", errno);
  }
  const absl::StatusOr<int> memory = ReceiveMemory(fd);
  if (!memory.ok()) return memory.status();
  const absl::Status mapped = link->Map(*memory);
  close(*memory);
  if (!mapped.ok()) return mapped;
  return link;
}

absl::Status SharedMemoryLink::Connect(const std::string& path, absl::Duration timeout) {
  sockaddr_un name = {};
  name.sun_family = AF_UNIX;
  if (path.size() >= sizeof(name.sun_path)) return NoChannel(path, ENAMETOOLONG);
  memcpy(name.sun_path, path.data(), path.size());
  if (timeout != absl::InfiniteDuration()) {
    const timeval time = absl::ToTimeval(std::max(timeout, absl::Milliseconds(1)));
    setsockopt(socket_, SOL_SOCKET, SO_SNDTIMEO, &time, sizeof(time));  // of connect as well
    setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof(time));
  }
  if (connect(socket_, reinterpret_cast<const sockaddr*>(&name), sizeof(name)) == 0) return absl::OkStatus();
  return NoChannel(path, errno);
}

// The server makes the memory whole and sealed; anything else could fail under our hands.
absl::Status SharedMemoryLink::Map(int memory) {
  const size_t bytes = channel::MemoryBytes(ring_bytes_);
  struct stat info;
  const int seals = fcntl(memory, F_GET_SEALS);
  if (fstat(memory, &info) != 0 || info.st_size != static_cast<off_t>(bytes) || (seals & F_SEAL_SHRINK) == 0) {
    return absl::InternalError("no same-host channel: the server's memory is not what it offered");
  }
  void* const start = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, memory, 0);
  if (start == MAP_FAILED) return NoChannel("mmap", errno);
  start_ = static_cast<uint8_t*>(start);
  if (header().magic == channel::kMagic && header().layout == channel::kLayout) return absl::OkStatus();
  return absl::InternalError("no same-host channel: the server lays its memory out in another way");
}

SharedMemoryLink::~SharedMemoryLink() {
  if (start_ != nullptr) munmap(start_, channel::MemoryBytes(ring_bytes_));
  close(socket_);
}

bool SharedMemoryLink::HungUp() const {
  pollfd wait = {socket_, POLLIN | POLLRDHUP, 0};  // nothing else is ever sent
  return poll(&wait, 1, 0) > 0;
}

}  // namespace seine::client
