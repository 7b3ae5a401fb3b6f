// The stranger: a client that does nothing wrong while others do, and measures what it gets. Decode steps on a context
// of its own, health calls, new connections.
#ifndef SEINE_TESTS_SOAK_BYSTANDER_H_
#define SEINE_TESTS_SOAK_BYSTANDER_H_

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tests/soak/result.h"

namespace seine::soak {

inline constexpr double kHangMs = 2000;  // a call of its that takes longer hangs

struct Client;

// Milliseconds.
struct Latencies {
  std::vector<double> all;
  double Quantile(double q) const;  // 0: none
  double Max() const;
};

class Bystander {
 public:
  // Appends its prompt; `ok` says whether that went well.
  // `endpoint`: as Endpoint::ToString. `metrics`: the HTTP listener's 127.0.0.1:PORT; empty: it is not asked.
  explicit Bystander(const std::string& endpoint, std::string metrics = "");
  ~Bystander();
  bool ok() const { return ok_; }

  void Start();
  void Stop();

  // Since Start. Steps are wrong where the answer is not the one that the same queries had before.
  const Latencies& steps() const { return steps_; }
  const Latencies& health() const { return health_; }
  const Latencies& connections() const { return connections_; }
  const Latencies& probes() const { return probes_; }  // /livez
  int64_t wrong_answers() const { return wrong_; }
  int64_t failures() const { return failures_; }  // calls with a status that is not OK
  std::string first_failure() const { return first_failure_; }
  // Adds what it saw to a run's. A call that took too long is a hang; one that failed, or a wrong answer, a break.
  void Report(Result* result) const;
  bool expects_refusals = false;  // of new connections

 private:
  void Decode();
  void Probe();
  void Failed(const std::string& what);

  const std::string endpoint_, metrics_;
  std::unique_ptr<Client> decoding_, probing_;  // connected before the attack
  bool ok_ = false;
  std::string expected_;  // the answer, serialised, without times
  std::atomic<bool> stop_{false};
  std::atomic<int64_t> wrong_{0}, failures_{0};
  std::mutex mutex_;
  std::string first_failure_;
  Latencies steps_, health_, connections_, probes_;
  std::thread decode_, probe_;
};

}  // namespace seine::soak

#endif  // SEINE_TESTS_SOAK_BYSTANDER_H_
