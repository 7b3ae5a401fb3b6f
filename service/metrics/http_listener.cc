#include "service/metrics/http_listener.h"

#include <arpa/inet.h>
#include <civetweb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <new>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "service/transport/sockets/address.h"

namespace seine {
namespace {

constexpr char kTextFormat[] = "text/plain; version=0.0.4; charset=utf-8";  // Prometheus's
constexpr char kPlain[] = "text/plain; charset=utf-8";

absl::Status Refused(absl::string_view why) { return absl::InvalidArgumentError(why); }

// What the library says of a start that fails, on the thread that starts; nothing is written anywhere else.
thread_local std::string* start_says = nullptr;
int KeepLine(const mg_connection*, const char* line) {
  if (start_says != nullptr && start_says->empty()) *start_says = line;
  return 1;
}

// Connects to a port of this machine, and hangs up.
void Knock(const std::string& address) {
  const size_t colon = address.rfind(':');
  sockaddr_in to{};
  int port = 0;
  if (!absl::SimpleAtoi(address.substr(colon + 1), &port)) return;
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<uint16_t>(port));
  if (inet_pton(AF_INET, address.substr(0, colon).c_str(), &to.sin_addr) != 1) return;
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return;
  static_cast<void>(connect(fd, reinterpret_cast<const sockaddr*>(&to), sizeof(to)));
  close(fd);
}

void Send(mg_connection* connection, const char* status, const char* type, const std::string& body, bool head) {
  const std::string header =
      absl::StrCat("HTTP/1.1 ", status, "\r\nContent-Type: ", type, "\r\nContent-Length: ", body.size(),
                   "\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n");
  mg_write(connection, header.data(), header.size());
  if (!head) mg_write(connection, body.data(), body.size());
}

}  // namespace

absl::StatusOr<std::string> ParseHttpAddress(absl::string_view text) {
  absl::StatusOr<Address> address = ParseAddress(text);
  if (absl::StartsWith(text, "unix:") || (address.ok() && !address->unix_path.empty())) {
    return Refused(
        absl::StrCat("'", text, "' is a Unix socket, and HTTP is served on TCP alone: write 127.0.0.1:PORT"));
  }
  const auto beyond = [text] {
    return Refused(absl::StrCat("'", text,
                                "' is beyond this machine's loopback, and metrics are served without credentials: "
                                "listen on 127.0.0.1 and forward to it"));
  };
  if (!address.ok()) {
    const absl::string_view why = address.status().message();
    return absl::StrContains(why, "loopback") ? beyond() : Refused(absl::StripPrefix(why, "listen: "));
  }
  if (address->host == "localhost") address->host = "127.0.0.1";
  if (absl::StrContains(address->host, ':')) {
    return Refused(absl::StrCat("'", text, "' is IPv6, and HTTP is served on IPv4 alone: write 127.0.0.1:PORT"));
  }
  if (!absl::StartsWith(address->host, "127.")) return beyond();
  return address->ToString();
}

absl::StatusOr<std::unique_ptr<HttpListener>> HttpListener::Open(const std::string& address, Answers answers) {
  [[maybe_unused]] static const unsigned features = mg_init_library(0);  // for the life of the process
  std::unique_ptr<HttpListener> listener(new HttpListener(std::move(answers)));
  // Four threads: scrapes, and probes beside them. A client that sends or reads nothing holds one up for as long as
  // the timeout, and the end of the server too: seined ends hard 900 ms after its grace.
  const char* options[] = {"listening_ports",
                           address.c_str(),
                           "num_threads",
                           "4",
                           "request_timeout_ms",
                           "800",
                           "enable_keep_alive",
                           "no",
                           "enable_directory_listing",
                           "no",
                           nullptr};
  mg_callbacks callbacks = {};
  callbacks.log_message = KeepLine;
  std::string why;
  start_says = &why;
  listener->context_ = mg_start(&callbacks, nullptr, options);
  start_says = nullptr;
  if (listener->context_ == nullptr) return absl::FailedPreconditionError(absl::StrCat("metrics.listen: ", why));
  mg_server_port port = {};
  const int ports = mg_get_server_ports(listener->context_, 1, &port);
  listener->address_ = absl::StrCat(address.substr(0, address.rfind(':')), ":", ports == 1 ? port.port : 0);
  mg_set_request_handler(listener->context_, "**", &HttpListener::Handle, listener.get());
  return listener;
}

// The library's thread looks at its end every two seconds, or when somebody connects.
HttpListener::~HttpListener() {
  if (context_ == nullptr) return;
  std::atomic<bool> ended{false};
  std::thread stops([&] {
    mg_stop(context_);
    ended = true;
  });
  while (!ended) {
    Knock(address_);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  stops.join();
}

int HttpListener::Handle(mg_connection* connection, void* self) {
  try {
    static_cast<const HttpListener*>(self)->Answer(connection);
  } catch (const std::bad_alloc&) {  // ahead of the first byte: the answer is made before it is sent
    constexpr char kNoMemory[] = "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
    mg_write(connection, kNoMemory, sizeof(kNoMemory) - 1);
  }
  return 1;
}

void HttpListener::Answer(mg_connection* connection) const {
  const mg_request_info* const request = mg_get_request_info(connection);
  const absl::string_view method = request->request_method, path = request->local_uri;
  const bool head = method == "HEAD";
  if (!head && method != "GET") {
    return Send(connection, "405 Method Not Allowed\r\nAllow: GET, HEAD", kPlain, "GET and HEAD alone\n", false);
  }
  if (path == "/metrics") return Send(connection, "200 OK", kTextFormat, answers_.metrics(), head);
  if (path == "/livez") return Send(connection, "200 OK", kPlain, "ok\n", head);
  if (path == "/readyz" || path == "/healthz") {
    const std::string why = answers_.not_ready();
    return why.empty() ? Send(connection, "200 OK", kPlain, "ok\n", head)
                       : Send(connection, "503 Service Unavailable", kPlain, why + "\n", head);
  }
  Send(connection, "404 Not Found", kPlain, "there are /metrics, /livez, /readyz and /healthz\n", head);
}

}  // namespace seine
