// A Seine server in a process: start, where it listens, shut down. seined is this and a command line; tests and benches
// use it directly.
#ifndef SEINE_SERVICE_SERVER_H_
#define SEINE_SERVICE_SERVER_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "service/core.h"
#include "service/server_options.h"

namespace seine {

class Server {
 public:
  // ALREADY_EXISTS: the address is in use. FAILED_PRECONDITION: the machine or the build has no such backend. The
  // status names what is wrong in one line.
  // INVALID_ARGUMENT: TLS, credentials, quotas or the audit file, by the setting's name.
  static absl::StatusOr<std::unique_ptr<Server>> Start(const ServerOptions& options);
  virtual ~Server() = default;  // as Shutdown(zero)

  virtual const std::string& address() const = 0;  // unix:/path or host:port, the port that was taken
  virtual Core& core() = 0;

  // Whether a health call through gRPC came back within this time, and the catalogue's lock was to be had; false once
  // the server shuts down. Thread-safe; blocks for ever where that lock is held for ever.
  virtual bool Answers(absl::Duration within) = 0;

  // Health turns NOT_SERVING, and calls go on: for a balancer to look elsewhere before Shutdown.
  virtual void Unready() = 0;

  // Health turns NOT_SERVING, new calls are refused, calls at work end; what runs after `grace` is stopped. Returns
  // when no call is left.
  virtual void Shutdown(absl::Duration grace) = 0;
};

}  // namespace seine

#endif  // SEINE_SERVICE_SERVER_H_
