// The connections that a server has: a second descriptor of each, so that a client that does not read, or that floods
// the server with stream resets, can be cut off. gRPC alone would wait for the first as long as it lives, with all that
// was to be sent to it, and makes calls for the second as fast as they come.
//
// Thread-safe.
#ifndef SEINE_SERVICE_TRANSPORT_SOCKETS_CONNECTIONS_H_
#define SEINE_SERVICE_TRANSPORT_SOCKETS_CONNECTIONS_H_

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <compare>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <unordered_map>

#include "service/transport/sockets/reset_window.h"

namespace seine {

class Connections {
 public:
  static constexpr int kDescriptorsEach = 2;  // gRPC's and ours

  Connections();
  ~Connections();
  Connections(const Connections&) = delete;
  Connections& operator=(const Connections&) = delete;

  void Add(int connection);  // which stays the caller's
  // Becomes readable when a connection has ended; Sweep then lets go of those.
  int ended_fd() const { return epoll_; }
  void Sweep();
  // Cuts off those whose client has not taken a byte of what is there for it for at least `time`, and counts them. To
  // be called about once a second: it sees what has changed since the last call.
  int CutUnread(std::chrono::steady_clock::duration time);
  // Ends all of them. Calls that come meanwhile end with UNAVAILABLE, where gRPC's own end would have them CANCELLED.
  void End();
  // Counts a call that has ended, of the connection that grpc::ServerContext::peer names `peer`: "fd:NUMBER" on a Unix
  // socket, which gRPC was given by its descriptor. True: the connection has been cut off by this, for its resets.
  bool Ended(const std::string& peer, CallEnd end);
  // Whether the client of a new connection is a process that has been cut off for its resets within kRefusedFor. A host
  // is never refused, for others may be on it: there a client may make half as many resets with each cut, for
  // kRemembered after the last.
  bool Refuses(int connection);
  static constexpr auto kRefusedFor = std::chrono::seconds(1), kRemembered = std::chrono::seconds(10);

  int64_t count() const;
  int64_t cut_unread() const { return cut_unread_.load(std::memory_order_relaxed); }  // so far
  int64_t cut_resets() const { return cut_resets_.load(std::memory_order_relaxed); }

 private:
  using Time = std::chrono::steady_clock::time_point;
  struct Client {  // the process at the other end of a Unix socket, or the host of a port
    pid_t process = 0;
    std::string host;
    auto operator<=>(const Client&) const = default;
  };
  static Client ClientOf(int fd);
  struct Connection {
    std::string name;
    Client client;
    int unsent = 0;  // bytes
    Time unsent_since;
    ResetWindow resets;
  };
  struct Flood {
    int cuts = 0;  // at most ResetWindow::kMostHalvings
    Time last;
  };
  int CutsOf(const Client& client, Time now) const;  // needs mutex_
  void CutFlood(int fd, Time now);                   // needs mutex_

  const int epoll_;
  mutable std::mutex mutex_;
  std::unordered_map<int, Connection> open_;    // by our descriptor; guarded by mutex_
  std::unordered_map<std::string, int> names_;  // our descriptors; guarded by mutex_
  std::map<Client, Flood> floods_;              // guarded by mutex_
  std::atomic<int64_t> cut_unread_{0}, cut_resets_{0};
};

}  // namespace seine

#endif  // SEINE_SERVICE_TRANSPORT_SOCKETS_CONNECTIONS_H_
