// The server's second listener: HTTP, for monitors and orchestrators.
//
//   /metrics  what the server counts, in Prometheus's text format
//   /livez    200: the process answers
//   /readyz   200: calls are served; else 503 and the reason
//   /healthz  both: 200 or 503 as /readyz
//   /page/    what Answers::page answers, where it is given; "/" leads there
//
// It has no encryption, and asks for no credentials itself, so it listens on loopback alone. A client that is slow, or
// sends nothing, holds nobody up (http_connections.h). Nor does an answer of the page, which a thread of its own gives,
// one at a time.
#ifndef SEINE_SERVICE_METRICS_HTTP_LISTENER_H_
#define SEINE_SERVICE_METRICS_HTTP_LISTENER_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "service/metrics/http_message.h"

namespace seine {

class HttpListener {
 public:
  // The first two are called on the listener's threads, several at once.
  struct Answers {
    std::function<std::string()> metrics;                         // the body of /metrics
    std::function<std::string()> not_ready;                       // why no calls are served; empty: they are
    std::function<HttpReply(const HttpRequest&)> page = nullptr;  // of paths below /page/; none: there is no page
  };

  // Listens on an address of ParseHttpAddress (http_address.h) and answers. FAILED_PRECONDITION naming metrics.listen:
  // it cannot.
  static absl::StatusOr<std::unique_ptr<HttpListener>> Open(const std::string& address, Answers answers);
  ~HttpListener();  // answers what is under way, for half a second at most, then closes
  HttpListener(const HttpListener&) = delete;
  HttpListener& operator=(const HttpListener&) = delete;

  const std::string& address() const { return address_; }  // HOST:PORT, the port that was taken

 private:
  class Daemon;
  explicit HttpListener(std::string address, std::unique_ptr<Daemon> daemon);

  const std::string address_;
  const std::unique_ptr<Daemon> daemon_;
};

}  // namespace seine

#endif  // SEINE_SERVICE_METRICS_HTTP_LISTENER_H_
