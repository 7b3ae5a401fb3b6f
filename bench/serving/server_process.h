// A seined of one's own: started on a Unix socket in a temporary folder, stopped with SIGTERM.
#ifndef SEINE_BENCH_SERVING_SERVER_PROCESS_H_
#define SEINE_BENCH_SERVING_SERVER_PROCESS_H_

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace seine::bench {

class ServerProcess {
 public:
  // Runs `program --listen <socket> arguments...`. It may not listen yet when this returns.
  static absl::StatusOr<std::unique_ptr<ServerProcess>> Start(const std::string& program,
                                                              const std::vector<std::string>& arguments);
  ~ServerProcess();  // SIGTERM, then waits for the end
  ServerProcess(const ServerProcess&) = delete;
  ServerProcess& operator=(const ServerProcess&) = delete;

  const std::string& endpoint() const { return endpoint_; }
  pid_t pid() const { return pid_; }

 private:
  ServerProcess(pid_t pid, std::string folder, std::string endpoint);
  pid_t pid_;
  std::string folder_, endpoint_;
};

}  // namespace seine::bench

#endif  // SEINE_BENCH_SERVING_SERVER_PROCESS_H_
