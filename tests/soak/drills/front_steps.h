// A client whose Decode stream goes through a front: TLS and a token, a sequence of its own, steps without end.
#ifndef SEINE_TESTS_SOAK_DRILLS_FRONT_STEPS_H_
#define SEINE_TESTS_SOAK_DRILLS_FRONT_STEPS_H_

#include <atomic>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "client/client.h"
#include "tests/soak/server/bystander.h"

namespace seine::soak {

class FrontSteps {
 public:
  // Waits 20 s for somebody to answer at `endpoint`, makes the sequence and appends its prompt. status() says how it
  // went.
  FrontSteps(const std::string& endpoint, const client::Security& security);
  ~FrontSteps() { Stop(); }
  const absl::Status& status() const { return status_; }

  void Start();
  void Stop();
  int64_t answered() const { return answered_; }
  // When it has stopped: each step's time, and the first that was not answered.
  const Latencies& steps() const { return steps_; }
  const absl::Status& failure() const { return failure_; }

 private:
  absl::Status Prepare(const std::string& endpoint, const client::Security& security);
  absl::Status Step(client::DecodeStream& stream);
  void Work();

  std::unique_ptr<client::Client> client_;
  client::Sequence sequence_;
  absl::Status status_, failure_;
  std::atomic<bool> stop_{false};
  std::atomic<int64_t> answered_{0};
  Latencies steps_;
  std::thread thread_;
};

}  // namespace seine::soak

#endif  // SEINE_TESTS_SOAK_DRILLS_FRONT_STEPS_H_
