// A seined under test: how it is started, what can be read of it from outside, and how it has to end.
#ifndef SEINE_TESTS_SOAK_SERVER_SOAKED_SERVER_H_
#define SEINE_TESTS_SOAK_SERVER_SOAKED_SERVER_H_

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/soak/result.h"
#include "tests/soak/server/endpoint.h"
#include "tests/soak/server/server_process.h"

namespace seine::soak {

inline constexpr int64_t kMiB = 1 << 20;

class SoakedServer {
 public:
  // With a memory limit of 256 MiB, on a socket or port of its own. `descriptors`: its RLIMIT_NOFILE, 0: as ours.
  explicit SoakedServer(const std::vector<std::string>& flags, int descriptors = 0, int grace = 2,
                        Transport transport = Transport::kUnix);

  bool Serves() const { return serves_; }
  const Endpoint& endpoint() const { return endpoint_; }
  const std::string& address() const { return endpoint_.address; }
  const std::string& metrics() const { return metrics_; }  // 127.0.0.1:PORT
  const std::string& folder() const { return folder_.path; }
  ChildProcess& process() { return process_; }

  // A metric without labels, as /metrics has it; absent where it does not answer.
  std::optional<double> Metric(const std::string& name) const;
  // The sum of a metric over its labels, or 0.
  double SumOf(const std::string& name) const;
  int Descriptors() const { return process_.Descriptors(); }
  // Waits until no byte is under way and at most `connections` are there. False: not within `seconds`; says what is.
  bool Settles(int connections, double seconds, std::string* what) const;

  // Tells it to end and waits. Notes crashes, hangs, memory over what it promised, and figures: rss_mib, end_s. Returns
  // its exit code, as ChildProcess::Wait does.
  int End(Result* result);

 private:
  double PromisedBytes() const;
  const int grace_;
  TemporaryFolder folder_;
  const Endpoint endpoint_;
  ChildProcess process_;
  std::string metrics_;
  bool serves_ = false;
};

void Sleep(double seconds);
bool WaitForLine(ChildProcess& child, const std::string& text, double seconds = 10);

}  // namespace seine::soak

#endif  // SEINE_TESTS_SOAK_SERVER_SOAKED_SERVER_H_
