// Clients that are at work when their server is told to end, and what they saw of it.
#ifndef SEINE_TESTS_SOAK_DRILLS_END_CLIENTS_H_
#define SEINE_TESTS_SOAK_DRILLS_END_CLIENTS_H_

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "tests/soak/server/made_requests.h"

namespace seine::soak {

// Thread-safe.
class EndWitness {
 public:
  using Clock = std::chrono::steady_clock;

  explicit EndWitness(int clients) : acknowledged_(static_cast<size_t>(clients)) {}

  void Acknowledged(int client, int64_t tokens) {
    acknowledged_[static_cast<size_t>(client)] = tokens;
    ++answered_;
  }
  // How a client's last call ended: UNAVAILABLE or CANCELLED, with a text. All else is a break.
  void Refused(const std::string& what, const absl::Status& status);
  void NotServing();
  void Break(const std::string& what);

  int64_t acknowledged(int client) const { return acknowledged_[static_cast<size_t>(client)]; }
  int64_t answered() const { return answered_; }
  int64_t refused() const { return refused_; }
  bool not_serving() const { return not_serving_; }
  bool HealthCameFirst() const;  // NOT_SERVING was seen, and before any call was refused
  std::vector<std::string> breaks() const;

 private:
  std::vector<std::atomic<int64_t>> acknowledged_;
  std::atomic<int64_t> answered_{0}, refused_{0};
  std::atomic<bool> not_serving_{false};
  mutable std::mutex mutex_;
  Clock::time_point first_refusal_ = Clock::time_point::max(), notified_ = Clock::time_point::max();
  std::vector<std::string> breaks_;
};

// Two unary writers, two Decode streams and two same-host channels, each with a sequence of its own; besides them one
// who asks for health, and reads when that turns what was acknowledged.
class EndClients {
 public:
  static constexpr int kClients = 6;

  explicit EndClients(const std::string& address);
  ~EndClients() { Join(); }

  void Join();  // when the server has ended
  const EndWitness& witness() const { return witness_; }
  // How the asking for health went, in words; when they have joined.
  const std::string& health() const { return health_; }
  int64_t read_back() const { return read_back_; }  // sequences that were found whole after NOT_SERVING

 private:
  void Unary(int client);
  void Stream(int client);
  void Channel(int client);
  void WatchHealth();
  void ReadBack(Client& client);
  grpc::Status Check(Client& client, bool* serving) const;

  const std::string address_;
  EndWitness witness_{kClients};
  std::atomic<int64_t> read_back_{0};
  std::string health_;
  std::vector<v1::SequenceHandle> handles_;
  std::vector<std::thread> threads_;
};

}  // namespace seine::soak

#endif  // SEINE_TESTS_SOAK_DRILLS_END_CLIENTS_H_
