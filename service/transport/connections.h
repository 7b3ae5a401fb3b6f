// The connections that a server has: a second descriptor of each, so that one whose client does not read can be cut
// off. gRPC alone would wait for its socket as long as the client lives, with all that was to be sent through it.
//
// Thread-safe.
#ifndef SEINE_SERVICE_TRANSPORT_CONNECTIONS_H_
#define SEINE_SERVICE_TRANSPORT_CONNECTIONS_H_

#include <chrono>
#include <cstdint>
#include <mutex>
#include <unordered_map>

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
  int64_t count() const;

 private:
  struct Unsent {
    int bytes = 0;
    std::chrono::steady_clock::time_point since;
  };
  const int epoll_;
  mutable std::mutex mutex_;
  std::unordered_map<int, Unsent> open_;  // by our descriptor; guarded by mutex_
};

}  // namespace seine

#endif  // SEINE_SERVICE_TRANSPORT_CONNECTIONS_H_
