// See counting_relay.h.
#include "bench/serving/sharded/counting_relay.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace seine::bench {
namespace {

constexpr int kPollMs = 20;  // until the relay notices that it is to end

sockaddr_un AddressOf(const std::string& path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof(address.sun_path) - 1);
  return address;
}

// Passes on what there is to read. Returns false at the end of the connection.
bool Pass(int from, int to, std::atomic<int64_t>* count) {
  static thread_local std::vector<char> piece(size_t{1} << 16);
  const ssize_t got = read(from, piece.data(), piece.size());
  if (got <= 0) return got < 0 && errno == EINTR;
  *count += got;
  for (ssize_t done = 0; done < got;) {
    const ssize_t sent = send(to, piece.data() + done, got - done, MSG_NOSIGNAL);
    if (sent < 0) return false;
    done += sent;
  }
  return true;
}

}  // namespace

absl::StatusOr<std::unique_ptr<CountingRelay>> CountingRelay::Start(const std::string& server) {
  std::unique_ptr<CountingRelay> relay(new CountingRelay);
  std::error_code error;
  relay->folder_ = (std::filesystem::temp_directory_path(error) / "seine-relay-XXXXXX").string();
  if (mkdtemp(relay->folder_.data()) == nullptr) return absl::ErrnoToStatus(errno, "cannot make a temporary folder");
  const std::string path = relay->folder_ + "/relay.sock";
  relay->endpoint_ = absl::StrCat("unix://", path);
  relay->server_ = std::string(absl::StripPrefix(server, "unix://"));
  const sockaddr_un at = AddressOf(path);
  relay->listener_ = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (bind(relay->listener_, reinterpret_cast<const sockaddr*>(&at), sizeof(at)) != 0 ||
      listen(relay->listener_, 1) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot listen at ", path));
  }
  relay->thread_ = std::thread([raw = relay.get()] { raw->Run(); });
  return relay;
}

CountingRelay::~CountingRelay() {
  over_ = true;
  if (thread_.joinable()) thread_.join();
  if (listener_ >= 0) close(listener_);
  std::error_code error;
  std::filesystem::remove_all(folder_, error);
}

void CountingRelay::Accept() {
  const int client = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
  const int server = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const sockaddr_un to = AddressOf(server_);
  if (client >= 0 && connect(server, reinterpret_cast<const sockaddr*>(&to), sizeof(to)) == 0) {
    ends_.insert(ends_.end(), {{client, POLLIN, 0}, {server, POLLIN, 0}});
    return;
  }
  close(server);
  if (client >= 0) close(client);
}

void CountingRelay::Run() {
  ends_ = {{listener_, POLLIN, 0}};
  while (!over_) {
    if (poll(ends_.data(), ends_.size(), kPollMs) <= 0) continue;
    for (size_t i = 1; i < ends_.size();) {
      const bool open = (ends_[i].revents == 0 || Pass(ends_[i].fd, ends_[i + 1].fd, &there_)) &&
                        (ends_[i + 1].revents == 0 || Pass(ends_[i + 1].fd, ends_[i].fd, &back_));
      if (open) {
        i += 2;
        continue;
      }
      close(ends_[i].fd), close(ends_[i + 1].fd);
      ends_.erase(ends_.begin() + i, ends_.begin() + i + 2);
    }
    if (ends_[0].revents != 0) Accept();
  }
  for (size_t i = 1; i < ends_.size(); ++i) close(ends_[i].fd);
}

}  // namespace seine::bench
