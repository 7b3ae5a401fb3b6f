// A server's own listening socket, and the thread that takes connections from it. That thread does nothing else, so a
// new connection never waits for a call at work; it refuses what would leave the process without file descriptors.
#ifndef SEINE_SERVICE_TRANSPORT_SOCKETS_LISTENER_H_
#define SEINE_SERVICE_TRANSPORT_SOCKETS_LISTENER_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "service/transport/sockets/address.h"
#include "service/transport/sockets/connections.h"
#include "service/transport/sockets/descriptors.h"

namespace seine {

class Listener {
 public:
  // Listens on `address`. ALREADY_EXISTS: another server listens there. FAILED_PRECONDITION: the path or port cannot be
  // had. A Unix socket is made for its owner alone, beside a file PATH.lock that is held for as long as it lives: of
  // two servers that start at once on one path, one is refused.
  static absl::StatusOr<std::unique_ptr<Listener>> Open(const Address& address);
  ~Listener();  // stops, and removes the socket's file if it still is this one's
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  const Address& address() const { return address_; }  // with the port that was taken

  // Hands the descriptor of each new connection to `take`, which owns it, until Stop. A connection beyond what
  // `descriptors` allow is told so (an HTTP/2 GOAWAY) and closed.
  // So is one whose client `connections` refuse; they get all others.
  void Start(std::function<void(int listener, int connection)> take, DescriptorLimit* descriptors,
             Connections* connections);
  void Stop();

  int64_t accepted() const { return accepted_.load(std::memory_order_relaxed); }
  int64_t refused() const { return refused_.load(std::memory_order_relaxed); }

 private:
  // A file that is locked while this lives, and removed at its end.
  class LockFile {
   public:
    LockFile() = default;
    ~LockFile();
    absl::Status Take(const std::string& path);

   private:
    std::string path_;
    int fd_ = -1;
  };

  explicit Listener(Address address) : address_(std::move(address)) {}
  absl::Status OpenUnix();
  absl::Status OpenPort();
  void Work();
  int Accept();  // a connection, or -1

  Address address_;
  LockFile lock_;
  int fd_ = -1, stop_ = -1, spare_ = -1;  // the socket; an event that ends the thread; a descriptor to refuse with
  uint64_t device_ = 0, inode_ = 0;       // of a Unix socket's file
  std::function<void(int, int)> take_;
  DescriptorLimit* descriptors_ = nullptr;
  Connections* connections_ = nullptr;
  std::atomic<int64_t> accepted_{0}, refused_{0};
  std::thread thread_;
};

}  // namespace seine

#endif  // SEINE_SERVICE_TRANSPORT_SOCKETS_LISTENER_H_
