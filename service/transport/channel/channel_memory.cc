#include "service/transport/channel/channel_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <new>

#include "absl/strings/str_cat.h"
#include "service/fields/error.h"
#include "service/transport/rpc.h"

namespace seine {
namespace {

absl::Status NoChannelMemory(absl::string_view what, int error) {
  return absl::ResourceExhaustedError(absl::StrCat("no memory for a channel: ", what, ": ", strerror(error)));
}

}  // namespace

absl::StatusOr<ChannelMemory> ChannelMemory::Make(InFlight& under_way, int64_t ring_bytes) {
  const size_t bytes = channel::MemoryBytes(ring_bytes);
  if (!under_way.TryTake(static_cast<int64_t>(bytes))) return TooMuchInFlight();
  ChannelMemory memory(under_way, static_cast<uint32_t>(ring_bytes));
  const int fd = memory.fd_ = memfd_create("seine-channel", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) return NoChannelMemory("memfd_create", errno);
  // Allocated here and now: a page that is missing later would be a signal, not an error.
  if (const int error = posix_fallocate(fd, 0, static_cast<off_t>(bytes)); error != 0)
    return NoChannelMemory("size", error);
  if (fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) return NoChannelMemory("seals", errno);
  void* const start = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
  if (start == MAP_FAILED) return NoChannelMemory("mmap", errno);
  memory.start_ = static_cast<uint8_t*>(start);
  new (start) channel::Header{channel::kMagic, channel::kLayout, memory.ring_bytes_, {}, {}};
  return memory;
}

ChannelMemory::~ChannelMemory() {
  if (start_ != nullptr) munmap(start_, channel::MemoryBytes(ring_bytes_));
  if (fd_ >= 0) close(fd_);
  if (under_way_ != nullptr) under_way_->Release(static_cast<int64_t>(channel::MemoryBytes(ring_bytes_)));
}

bool ChannelMemory::SendTo(int socket) {
  char welcome = channel::kWelcome;
  iovec bytes = {&welcome, sizeof(welcome)};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message = {};
  message.msg_iov = &bytes;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  cmsghdr* const head = CMSG_FIRSTHDR(&message);
  head->cmsg_level = SOL_SOCKET;
  head->cmsg_type = SCM_RIGHTS;
  head->cmsg_len = CMSG_LEN(sizeof(int));
  memcpy(CMSG_DATA(head), &fd_, sizeof(int));
  const bool sent = sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT) == 1;
  close(std::exchange(fd_, -1));
  return sent;
}

}  // namespace seine
