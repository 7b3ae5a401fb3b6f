#include "service/transport/sockets/listener.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <string>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "kernels/thread_name.h"
#include "service/transport/sockets/port.h"

namespace seine {
namespace {

constexpr int kBacklog = 512;
constexpr int kPause = 20;  // ms, after an accept that failed for want of something

// A host that went silent is noticed within 18 s, by the kernel: of a connection with nothing under way by probes, of
// one with bytes on their way by what is not acknowledged. HTTP/2's own pings are not used, because a client that waits
// in a futex or computes for long answers none, and it lives.
constexpr int kIdleSeconds = 12, kProbeSeconds = 3, kProbes = 2;
constexpr int kUnacknowledgedMs = 18000;

void WatchPeer(int fd) {
  const auto set = [fd](int level, int option, int value) { setsockopt(fd, level, option, &value, sizeof(value)); };
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, kIdleSeconds);
  set(IPPROTO_TCP, TCP_KEEPINTVL, kProbeSeconds);
  set(IPPROTO_TCP, TCP_KEEPCNT, kProbes);
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, kUnacknowledgedMs);
}

// The mask is the process's, so servers of one process bind one after another.
class OwnerOnly {
 public:
  OwnerOnly() : lock_(mutex_), before_(umask(0177)) {}
  ~OwnerOnly() { umask(before_); }

 private:
  static inline std::mutex mutex_;
  std::lock_guard<std::mutex> lock_;
  mode_t before_;
};

absl::Status Refused(absl::string_view what) { return absl::FailedPreconditionError(absl::StrCat("listen: ", what)); }

absl::Status InUse(const Address& address) {
  return absl::AlreadyExistsError(
      absl::StrCat("listen: ", address.ToString(), " is in use by another server; --listen takes another address"));
}

sockaddr_un UnixAddress(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  memcpy(address.sun_path, path.data(), path.size());
  return address;
}

// Removes a socket's file that nobody listens behind. A server without a lock file may do so.
absl::Status RemoveStale(const Address& address) {
  const std::string& path = address.unix_path;
  struct stat info;
  if (lstat(path.c_str(), &info) != 0) {
    return errno == ENOENT ? absl::OkStatus() : Refused(absl::StrCat(path, ": ", strerror(errno)));
  }
  if (!S_ISSOCK(info.st_mode)) return Refused(absl::StrCat(path, " is not a socket"));
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return Refused(absl::StrCat("socket: ", strerror(errno)));
  const absl::Cleanup close_fd = [fd] { close(fd); };
  const sockaddr_un name = UnixAddress(path);
  // Refused: nobody listens. Anything else (connected, queue full, no permission): somebody does.
  if (connect(fd, reinterpret_cast<const sockaddr*>(&name), sizeof(name)) == 0 || errno != ECONNREFUSED) {
    return InUse(address);
  }
  if (unlink(path.c_str()) == 0 || errno == ENOENT) return absl::OkStatus();
  return Refused(absl::StrCat("cannot remove ", path, ": ", strerror(errno)));
}

// HTTP/2's own way to say no: empty SETTINGS, then GOAWAY (last stream 0, ENHANCE_YOUR_CALM) with a reason in words.
std::string GoAway(const std::string& reason) {
  std::string frames("\0\0\0\x04\0\0\0\0\0", 9);
  frames += std::string("\0\0", 2) + static_cast<char>(8 + reason.size()) + std::string("\x07\0\0\0\0\0", 6);
  return frames + std::string("\0\0\0\0\0\0\0\x0b", 8) + reason;
}

}  // namespace

Listener::LockFile::~LockFile() {
  if (fd_ < 0) return;
  unlink(path_.c_str());
  close(fd_);
}

absl::Status Listener::LockFile::Take(const std::string& path) {
  for (;;) {
    const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
    if (fd < 0) return Refused(absl::StrCat(path, ": ", strerror(errno)));
    struct stat held, named;
    if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
      close(fd);
      return absl::AlreadyExistsError("");
    }
    // The holder before may have removed it since it was opened.
    if (fstat(fd, &held) == 0 && lstat(path.c_str(), &named) == 0 && held.st_ino == named.st_ino) {
      path_ = path;
      fd_ = fd;
      return absl::OkStatus();
    }
    close(fd);
  }
}

absl::StatusOr<std::unique_ptr<Listener>> Listener::Open(const Address& address) {
  std::unique_ptr<Listener> listener(new Listener(address));
  if (auto s = address.unix_path.empty() ? listener->OpenPort() : listener->OpenUnix(); !s.ok()) return s;
  if (listen(listener->fd_, kBacklog) != 0) {
    return errno == EADDRINUSE ? InUse(address) : Refused(absl::StrCat(address.ToString(), ": ", strerror(errno)));
  }
  listener->stop_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  listener->spare_ = open("/dev/null", O_RDONLY | O_CLOEXEC);
  if (listener->stop_ < 0 || listener->spare_ < 0) return Refused(absl::StrCat("no descriptor: ", strerror(errno)));
  return listener;
}

absl::Status Listener::OpenUnix() {
  const std::string& path = address_.unix_path;
  if (absl::Status s = MakeDefaultFolder(address_); !s.ok()) return s;
  const auto folder = std::filesystem::absolute(path).parent_path();
  std::error_code ignored;
  if (!std::filesystem::is_directory(folder, ignored)) {
    return Refused(absl::StrCat("no such folder: ", folder.string()));
  }
  struct stat info;
  if (lstat(path.c_str(), &info) == 0 && !S_ISSOCK(info.st_mode)) return Refused(path + " is not a socket");
  if (auto s = lock_.Take(path + ".lock"); !s.ok()) return absl::IsAlreadyExists(s) ? InUse(address_) : s;
  if (auto s = RemoveStale(address_); !s.ok()) return s;
  fd_ = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd_ < 0) return Refused(absl::StrCat("socket: ", strerror(errno)));
  const sockaddr_un name = UnixAddress(path);
  const OwnerOnly mask;
  if (bind(fd_, reinterpret_cast<const sockaddr*>(&name), sizeof(name)) != 0) {
    return errno == EADDRINUSE ? InUse(address_) : Refused(absl::StrCat(path, ": ", strerror(errno)));
  }
  if (lstat(path.c_str(), &info) == 0) {
    device_ = info.st_dev;
    inode_ = info.st_ino;
  }
  return absl::OkStatus();
}

absl::Status Listener::OpenPort() {
  const absl::StatusOr<int> bound = BindPort(&address_);
  if (absl::IsAlreadyExists(bound.status())) return InUse(address_);
  if (!bound.ok()) return absl::Status(bound.status().code(), absl::StrCat("listen: ", bound.status().message()));
  fd_ = *bound;
  return absl::OkStatus();
}

Listener::~Listener() {
  Stop();
  struct stat info;
  const std::string& path = address_.unix_path;
  // Another's socket may stand there by now: it stays.
  if (inode_ != 0 && lstat(path.c_str(), &info) == 0 && info.st_dev == device_ && info.st_ino == inode_) {
    unlink(path.c_str());
  }
  for (const int fd : {fd_, stop_, spare_}) {
    if (fd >= 0) close(fd);
  }
}

void Listener::Start(std::function<void(int, int)> take, DescriptorLimit* descriptors, Connections* connections) {
  take_ = std::move(take);
  descriptors_ = descriptors;
  connections_ = connections;
  thread_ = std::thread([this] { Work(); });
}

void Listener::Stop() {
  if (!thread_.joinable()) return;
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(stop_, &one, sizeof(one));
  thread_.join();
}

int Listener::Accept() { return accept4(fd_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK); }

void Listener::Work() {
  NameThread("listener");
  static const std::string full = GoAway("the server has no descriptor left for another connection; try again later");
  static const std::string flooded = GoAway("too many streams of this process were reset; try again in a second");
  pollfd waits[] = {{fd_, POLLIN, 0}, {stop_, POLLIN, 0}, {connections_->ended_fd(), POLLIN, 0}};
  const auto refuse = [this](int fd, const std::string& go_away) {
    refused_.fetch_add(1, std::memory_order_relaxed);
    [[maybe_unused]] const ssize_t sent = send(fd, go_away.data(), go_away.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    close(fd);
  };
  for (;;) {
    if (poll(waits, 3, -1) < 0 && errno != EINTR) return;
    if (waits[1].revents != 0) return;
    if (waits[2].revents != 0) connections_->Sweep();
    if (waits[0].revents == 0) continue;
    int fd = Accept();
    if (fd < 0) {
      if (errno != EMFILE && errno != ENFILE && errno != ENOMEM && errno != ENOBUFS) continue;
      // None is left, whoever has them: the spare one makes room to refuse with.
      close(spare_);
      fd = Accept();
      if (fd >= 0) refuse(fd, full);
      spare_ = open("/dev/null", O_RDONLY | O_CLOEXEC);
      poll(&waits[1], 1, kPause);
      continue;
    }
    if (!descriptors_->Admits(Connections::kDescriptorsEach)) {
      refuse(fd, full);
      continue;
    }
    if (connections_->Refuses(fd)) {
      refuse(fd, flooded);
      continue;
    }
    accepted_.fetch_add(1, std::memory_order_relaxed);
    if (address_.unix_path.empty()) WatchPeer(fd);
    connections_->Add(fd);
    take_(fd_, fd);
  }
}

}  // namespace seine
