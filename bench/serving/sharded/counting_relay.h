// Stands between clients and a server on a Unix socket, and counts the bytes of all connections each way.
#ifndef SEINE_BENCH_SERVING_SHARDED_COUNTING_RELAY_H_
#define SEINE_BENCH_SERVING_SHARDED_COUNTING_RELAY_H_

#include <poll.h>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"

namespace seine::bench {

// Counters may be read from any thread. All framing of the connections is counted, not the wire's own below it.
class CountingRelay {
 public:
  // `server`: unix://PATH. Connections to it that fail are closed. An error: a socket cannot be made.
  static absl::StatusOr<std::unique_ptr<CountingRelay>> Start(const std::string& server);
  ~CountingRelay();  // ends the connections
  CountingRelay(const CountingRelay&) = delete;
  CountingRelay& operator=(const CountingRelay&) = delete;

  const std::string& endpoint() const { return endpoint_; }
  int64_t bytes_there() const { return there_; }  // to the server
  int64_t bytes_back() const { return back_; }

 private:
  CountingRelay() = default;
  void Run();
  void Accept();

  std::string folder_, endpoint_, server_;
  int listener_ = -1;
  std::vector<pollfd> ends_;  // the listener, then of each connection the client's end and the server's
  std::atomic<bool> over_ = false;
  std::atomic<int64_t> there_ = 0, back_ = 0;
  std::thread thread_;
};

}  // namespace seine::bench

#endif  // SEINE_BENCH_SERVING_SHARDED_COUNTING_RELAY_H_
