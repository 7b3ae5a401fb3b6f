// The server's second listener: HTTP, for monitors and orchestrators.
//
//   /metrics  what the server counts, in Prometheus's text format
//   /livez    200: the process answers
//   /readyz   200: calls are served; else 503 and the reason
//   /healthz  both: 200 or 503 as /readyz
//
// It has no credentials and no encryption, so it listens on loopback alone. Debian's HTTP library (civetweb) takes
// neither Unix sockets nor IPv6.
#ifndef SEINE_SERVICE_METRICS_HTTP_LISTENER_H_
#define SEINE_SERVICE_METRICS_HTTP_LISTENER_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

struct mg_connection;
struct mg_context;

namespace seine {

// "HOST:PORT" of metrics.listen, the host as the HTTP library takes it. INVALID_ARGUMENT saying why an address is not
// taken.
absl::StatusOr<std::string> ParseHttpAddress(absl::string_view text);

class HttpListener {
 public:
  // Both are called on the listener's threads, several at once.
  struct Answers {
    std::function<std::string()> metrics;    // the body of /metrics
    std::function<std::string()> not_ready;  // why no calls are served; empty: they are
  };

  // Listens on an address of ParseHttpAddress and answers. FAILED_PRECONDITION naming metrics.listen: it cannot.
  static absl::StatusOr<std::unique_ptr<HttpListener>> Open(const std::string& address, Answers answers);
  ~HttpListener();  // answers what is under way, then closes
  HttpListener(const HttpListener&) = delete;
  HttpListener& operator=(const HttpListener&) = delete;

  const std::string& address() const { return address_; }  // HOST:PORT, the port that was taken

 private:
  explicit HttpListener(Answers answers) : answers_(std::move(answers)) {}
  static int Handle(mg_connection* connection, void* self);
  void Answer(mg_connection* connection) const;

  const Answers answers_;
  std::string address_;
  mg_context* context_ = nullptr;
};

}  // namespace seine

#endif  // SEINE_SERVICE_METRICS_HTTP_LISTENER_H_
