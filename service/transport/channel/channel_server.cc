#include "service/transport/channel/channel_server.h"

#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/thread_name.h"
#include "service/channel_offers.h"
#include "service/event_log.h"
#include "service/under_way/in_flight.h"

namespace seine {
namespace {

using Clock = std::chrono::steady_clock;

constexpr char kChannelSuffix[] = ".channel";
constexpr int kChannelBacklog = 64;
constexpr size_t kMostGuests = 64;
constexpr int kAcceptedAtOnce = 64;
constexpr auto kGuestPatience = std::chrono::seconds(2);  // with a guest that sends no token
constexpr int kWatchRoundMs = 10;                         // while guests wait, or channels are to end

absl::Status NoChannels(absl::string_view what) {
  return absl::UnavailableError(absl::StrCat("no same-host channels: ", what, ": ", strerror(errno)));
}

}  // namespace

ChannelServer::~ChannelServer() { Stop(); }

void ChannelServer::Start(const Address& address) {
  if (core_.options.channels == 0) return core_.channels.Refuse("same-host channels are switched off (--channels 0)");
  if (address.unix_path.empty()) {
    return core_.channels.Refuse("the server listens on TCP: same-host channels need a Unix socket");
  }
  std::error_code error;
  const std::string path = std::filesystem::absolute(address.unix_path, error).string() + kChannelSuffix;
  if (auto s = Listen(path); !s.ok()) return core_.channels.Refuse(std::string(s.message()));
  core_.channels.Open(path);
  thread_ = std::thread([this] { Work(); });
}

absl::Status ChannelServer::Listen(const std::string& path) {
  sockaddr_un name = {};
  name.sun_family = AF_UNIX;
  if (path.size() >= sizeof(name.sun_path)) {
    return absl::InvalidArgumentError(absl::StrCat("no same-host channels: the path of their socket would have ",
                                                   path.size(), " bytes, and a socket's has at most ",
                                                   sizeof(name.sun_path) - 1));
  }
  memcpy(name.sun_path, path.data(), path.size());
  changed_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (changed_ < 0) return NoChannels("event");
  listener_ = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (listener_ < 0) return NoChannels("socket");
  if (fchmod(listener_, 0600) != 0) return NoChannels("mode");  // Linux gives it to the file, from the first moment on
  struct stat info;
  if (lstat(path.c_str(), &info) == 0 && S_ISSOCK(info.st_mode)) unlink(path.c_str());
  if (bind(listener_, reinterpret_cast<const sockaddr*>(&name), sizeof(name)) != 0) return NoChannels(path);
  path_ = path;
  return listen(listener_, kChannelBacklog) == 0 ? absl::OkStatus() : NoChannels(path);
}

void ChannelServer::Stop() {
  if (thread_.joinable()) {
    stopping_.store(true);
    Notify();
    thread_.join();
  }
  if (!path_.empty()) unlink(path_.c_str());
  path_.clear();
  for (int* fd : {&listener_, &changed_}) {
    if (*fd >= 0) close(std::exchange(*fd, -1));
  }
}

void ChannelServer::Notify() const {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(changed_, &one, sizeof(one));
}

void ChannelServer::Work() {
  NameThread("channels");
  std::vector<pollfd> waits;
  for (;;) {
    const bool stopping = stopping_.load();
    bool ending = !guests_.empty();
    for (const Member& member : members_) {
      if (stopping) member.channel->Gone();
      if (!member.channel->ending()) continue;
      member.channel->Wake();
      ending = true;
    }
    if (stopping && members_.empty()) break;
    waits = {{changed_, POLLIN, 0}, {listener_, POLLIN, 0}};
    for (const Guest& guest : guests_) waits.push_back({guest.socket, POLLIN, 0});
    // Nothing is sent once a channel is open: whatever happens is its end. One that ends already is not asked again.
    for (const Member& member : members_) {
      waits.push_back({member.channel->cut() ? -1 : member.socket, POLLIN | POLLRDHUP, 0});
    }
    if (poll(waits.data(), waits.size(), ending ? kWatchRoundMs : -1) < 0 && errno != EINTR) break;
    uint64_t count = 0;
    [[maybe_unused]] const ssize_t cleared = read(changed_, &count, sizeof(count));
    const size_t first_member = 2 + guests_.size();
    for (size_t i = 0; i < members_.size(); ++i) {
      if (waits[first_member + i].revents != 0) members_[i].channel->Gone();
    }
    std::erase_if(members_, [this](Member& member) {
      if (!member.channel->ended()) return false;
      member.channel = nullptr;  // its thread is at its end
      close(member.socket);
      core_.channels.Closed();
      return true;
    });
    std::erase_if(guests_, [this](Guest& guest) { return Greet(&guest); });
    for (int i = 0; waits[1].revents != 0 && i < kAcceptedAtOnce && Accept(); ++i) {
    }
  }
  for (const Guest& guest : guests_) close(guest.socket);
  guests_.clear();
}

bool ChannelServer::Accept() {
  const int socket = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (socket < 0) return false;  // gone again, or no descriptor is left: it waits
  ucred peer = {};
  socklen_t length = sizeof(peer);
  Guest guest = {socket, Clock::now(), ""};
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0 || peer.uid != geteuid()) {
    TurnAway(guest, absl::PermissionDeniedError("the peer is another user's process"));
    return true;
  }
  if (Greet(&guest)) return true;  // as a client does, it has sent its token already
  if (guests_.size() == kMostGuests) {
    TurnAway(guests_.front(), absl::ResourceExhaustedError("the peer sent no token, and others wait"));
    guests_.erase(guests_.begin());
  }
  guests_.push_back(std::move(guest));
  return true;
}

bool ChannelServer::Greet(Guest* guest) {
  char bytes[channel::kTokenBytes];
  const size_t missing = channel::kTokenBytes - guest->token.size();
  const ssize_t got = recv(guest->socket, bytes, missing, MSG_DONTWAIT);
  if (got > 0) guest->token.append(bytes, static_cast<size_t>(got));
  if (guest->token.size() == channel::kTokenBytes) {
    if (auto s = Admit(*guest); !s.ok()) TurnAway(*guest, s);
    return true;
  }
  const bool open = got > 0 || (got < 0 && (errno == EAGAIN || errno == EINTR));
  if (open && Clock::now() < guest->since + kGuestPatience) return false;
  TurnAway(*guest, open ? absl::DeadlineExceededError("the peer sent no token in time")
                        : absl::CancelledError("the peer is gone before it sent its token"));
  return true;
}

absl::Status ChannelServer::Admit(const Guest& guest) {
  const auto promised = core_.channels.Redeem(guest.token);
  if (!promised) return absl::PermissionDeniedError("the peer's token is wrong, too old or was used before");
  ucred peer = {};
  socklen_t length = sizeof(peer);
  getsockopt(guest.socket, SOL_SOCKET, SO_PEERCRED, &peer, &length);
  absl::Status status;
  try {
    auto memory = ChannelMemory::Make(core_.in_flight, promised->ring_bytes);
    status = memory.status();
    if (memory.ok() && !memory->SendTo(guest.socket)) status = absl::CancelledError("the peer is gone");
    if (status.ok()) {
      auto channel = std::make_unique<SharedChannel>(core_, *std::move(memory), absl::StrCat("shm:", peer.pid),
                                                     polling_, [this] { Notify(); });
      if (promised->caller != nullptr) status = channel->SetCaller(promised->caller);
      if (status.ok()) {
        members_.reserve(members_.size() + 1);
        channel->Start();
        members_.push_back({guest.socket, std::move(channel)});
      }
    }
  } catch (const std::bad_alloc&) {
    status = absl::ResourceExhaustedError("the system has no memory for a channel");
  } catch (const std::system_error& error) {
    status = absl::ResourceExhaustedError(absl::StrCat("the system has no thread for a channel: ", error.what()));
  }
  if (!status.ok()) core_.channels.Closed();
  return status;
}

void ChannelServer::TurnAway(const Guest& guest, const absl::Status& why) {
  core_.channels.CountRefused();
  core_.log.Ended({"SharedMemory handshake", "unix:", guest.since}, why);
  close(guest.socket);
}

}  // namespace seine
