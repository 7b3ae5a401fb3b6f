// Seine as the Python module calls it: in this process, or a server's. Nothing here knows Python.
#ifndef SEINE_ENGINES_PYTHON_CONNECTIONS_CONNECTION_H_
#define SEINE_ENGINES_PYTHON_CONNECTIONS_CONNECTION_H_

#include <google/protobuf/message.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/client.h"

namespace seine::python {

// Errors are the client's (client.h), whoever answers. Thread-safe; what it has opened may outlive it.
class Connection {
 public:
  virtual ~Connection() = default;

  virtual const std::string& endpoint() const = 0;
  // How long a call may take that is given no time of its own.
  virtual absl::Duration timeout() const = 0;

  // A method that is no stream of answers. The messages are of the method's types.
  virtual absl::Status Call(const client::Method& method, const google::protobuf::Message& request,
                            google::protobuf::Message* response, absl::Duration timeout) = 0;
  // Appends tokens of one layer, however many.
  virtual absl::StatusOr<client::AppendTotals> Append(const client::AppendItem& item, absl::Duration timeout) = 0;

  // A stream, and how its steps travel.
  struct Opened {
    std::unique_ptr<client::DecodeStream> stream;
    std::string transport;
    bool takes_device = false;  // tensors of steps may lie on a device (device_copies)
  };
  // `transport`: "auto", or one of transports(). INVALID_ARGUMENT: another.
  virtual absl::StatusOr<Opened> OpenStream(absl::Duration step_timeout, const std::string& transport) = 0;

  // Bytes that calls have copied between the host and the device that attends; nothing where there is none. Where it
  // is, keys, values and queries of calls may lie on it, and outputs.
  struct DeviceCopies {
    int64_t to_device = 0, to_host = 0;
  };
  virtual std::optional<DeviceCopies> device_copies() { return std::nullopt; }

  // In process, where "auto" has taken the CPU in a build with CUDA: why. Else empty.
  virtual std::string why_cpu() { return {}; }

  // A profile's file for the indexes to come; returns the profile's name. A server has its own: UNIMPLEMENTED.
  virtual absl::StatusOr<std::string> AddProfile(const std::string& path) = 0;
};

struct InProcessOptions {
  int threads = 0;  // 0: one a core
  std::string backend = "auto";
  int64_t memory_limit_bytes = 0;     // 0: none
  std::vector<std::string> profiles;  // files, and one folder at most
};
// FAILED_PRECONDITION: there is no such backend here. INVALID_ARGUMENT naming the field.
absl::StatusOr<std::shared_ptr<Connection>> OpenInProcess(const InProcessOptions& options);

// A server's, connected when it is first called. INVALID_ARGUMENT: no endpoint of a form that is taken. What is wrong
// with `security` is the first call's error: its files may change.
absl::StatusOr<std::shared_ptr<Connection>> OpenRemote(const std::string& endpoint, absl::Duration timeout,
                                                       const client::Security& security);

}  // namespace seine::python

#endif  // SEINE_ENGINES_PYTHON_CONNECTIONS_CONNECTION_H_
