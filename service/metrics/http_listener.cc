#include "service/metrics/http_listener.h"

#include <microhttpd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <new>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "kernels/thread_name.h"
#include "service/metrics/http_connections.h"
#include "service/snapshots/files/exit_files.h"
#include "service/transport/sockets/address.h"
#include "service/transport/sockets/port.h"

namespace seine {
namespace {

constexpr char kTextFormat[] = "text/plain; version=0.0.4; charset=utf-8";  // Prometheus's
constexpr char kPlain[] = "text/plain; charset=utf-8";
constexpr unsigned kThreads = 4;              // a scrape that takes long holds up its own alone
constexpr size_t kConnectionBytes = 8 << 10;  // a request's, and its answer's headers
constexpr unsigned kSilentSeconds = 2;        // of a client while nobody else comes
constexpr std::chrono::milliseconds kLastAnswers{500};
constexpr size_t kMostAsked = 32;  // requests that wait for the page's thread

// Leaves most descriptors to calls: of few, few.
size_t MostConnections() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return 16;
  return static_cast<size_t>(std::clamp<rlim_t>(limit.rlim_cur / 16, 12, 256));
}

MHD_Result Queue(MHD_Connection* to, HttpReply reply) {
  auto body = std::make_unique<std::string>(std::move(reply.body));
  MHD_Response* const response = MHD_create_response_from_buffer_with_free_callback_cls(
      body->size(), body->data(), [](void* held) { delete static_cast<std::string*>(held); }, body.get());
  if (response == nullptr) return MHD_NO;
  static_cast<void>(body.release());  // the response's
  MHD_Result done = MHD_YES;
  const auto header = [&](const char* name, const char* value) {
    if (MHD_add_response_header(response, name, value) != MHD_YES) done = MHD_NO;
  };
  if (!reply.type.empty()) header("Content-Type", reply.type.c_str());
  header("Connection", "close");
  bool cached = false;
  for (const auto& [name, value] : reply.headers) {
    header(name.c_str(), value.c_str());
    cached = cached || name == "Cache-Control";
  }
  if (!cached) header("Cache-Control", "no-store");
  if (done == MHD_YES) done = MHD_queue_response(to, reply.code, response);
  MHD_destroy_response(response);
  return done;
}

MHD_Result Queue(MHD_Connection* to, unsigned code, const char* type, std::string text) {
  return Queue(to, {code, type, std::move(text)});
}

HttpRequest RequestOf(MHD_Connection* from, const char* path) {
  const auto text = [from](MHD_ValueKind kind, const char* name) -> std::string {
    const char* const value = MHD_lookup_connection_value(from, kind, name);
    return value == nullptr ? "" : value;
  };
  return {path,
          text(MHD_GET_ARGUMENT_KIND, "request"),
          text(MHD_HEADER_KIND, MHD_HTTP_HEADER_HOST),
          text(MHD_HEADER_KIND, MHD_HTTP_HEADER_AUTHORIZATION),
          text(MHD_HEADER_KIND, "Sec-Fetch-Site"),
          text(MHD_HEADER_KIND, MHD_HTTP_HEADER_IF_NONE_MATCH)};
}

MHD_Result Answer(const HttpListener::Answers& answers, MHD_Connection* to, absl::string_view method,
                  absl::string_view path) {
  if (method != "GET" && method != "HEAD") {
    return Queue(to, {MHD_HTTP_METHOD_NOT_ALLOWED, kPlain, "GET and HEAD alone\n", {{"Allow", "GET, HEAD"}}});
  }
  if (path == "/metrics") return Queue(to, MHD_HTTP_OK, kTextFormat, answers.metrics());
  if (path == "/livez") return Queue(to, MHD_HTTP_OK, kPlain, "ok\n");
  if (path == "/readyz" || path == "/healthz") {
    const std::string why = answers.not_ready();
    return why.empty() ? Queue(to, MHD_HTTP_OK, kPlain, "ok\n")
                       : Queue(to, MHD_HTTP_SERVICE_UNAVAILABLE, kPlain, why + "\n");
  }
  if (answers.page == nullptr) {
    return Queue(to, MHD_HTTP_NOT_FOUND, kPlain, "there are /metrics, /livez, /readyz and /healthz\n");
  }
  if (path == "/" || path == "/page") return Queue(to, {MHD_HTTP_FOUND, kPlain, "/page/\n", {{"Location", "/page/"}}});
  return Queue(to, MHD_HTTP_NOT_FOUND, kPlain, "there are /metrics, /livez, /readyz, /healthz and /page/\n");
}

// Answers what the page is asked, one request at a time on a thread of its own: what takes long there holds no probe
// up. A connection is suspended meanwhile.
class PageAnswers {
 public:
  struct Job {
    MHD_Connection* connection = nullptr;
    HttpRequest request;
    HttpReply reply;
  };

  explicit PageAnswers(std::function<HttpReply(const HttpRequest&)> answer) : answer_(std::move(answer)) {
    if (answer_ != nullptr) thread_ = std::thread([this] { Work(); });
  }
  ~PageAnswers() { Stop(); }

  // Suspends the connection until the answer is there. The job is the connection's, which is asked again then. False:
  // too many wait.
  bool Ask(Job* job) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (stops_ || waiting_.size() >= kMostAsked) return false;
    waiting_.push_back(job);
    MHD_suspend_connection(job->connection);
    wake_.notify_one();
    return true;
  }
  // Answers what waits with an error. Nothing is suspended afterwards.
  void Stop() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      stops_ = true;
      wake_.notify_one();
    }
    if (thread_.joinable()) thread_.join();
  }

 private:
  void Work() {
    NameThread("page");
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      wake_.wait(lock, [this] { return stops_ || !waiting_.empty(); });
      if (waiting_.empty()) return;
      Job* const job = waiting_.front();
      waiting_.pop_front();
      const bool stops = stops_;
      lock.unlock();
      job->reply =
          stops ? HttpReply{MHD_HTTP_SERVICE_UNAVAILABLE, kPlain, "the server is shutting down\n"} : Answer(*job);
      MHD_resume_connection(job->connection);
      lock.lock();
    }
  }
  HttpReply Answer(const Job& job) const {
    try {
      return answer_(job.request);
    } catch (const std::bad_alloc&) {
      return {MHD_HTTP_SERVICE_UNAVAILABLE, "", ""};
    }
  }

  const std::function<HttpReply(const HttpRequest&)> answer_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Job*> waiting_;  // guarded by mutex_
  bool stops_ = false;        // guarded by mutex_
  std::thread thread_;
};

}  // namespace

// The library's threads and what they need, for as long as they run. No exception may pass through the library.
class HttpListener::Daemon {
 public:
  Daemon(Answers answers, size_t most)
      : answers_(std::move(answers)), connections_(most), most_(most), page_(answers_.page) {}
  ~Daemon() {
    if (daemon_ == nullptr) return;
    const MHD_socket listening = MHD_quiesce_daemon(daemon_);
    connections_.WaitForAnswers(kLastAnswers);
    page_.Stop();
    MHD_stop_daemon(daemon_);
    MHD_destroy_response(no_memory_);
    if (listening != MHD_INVALID_SOCKET) close(listening);
  }

  // Takes the bound socket where it succeeds.
  bool Start(int fd) {
    no_memory_ = MHD_create_response_from_buffer(0, nullptr, MHD_RESPMEM_PERSISTENT);
    if (no_memory_ == nullptr) return false;
    // The library shares its limit among the threads; connections_ ends what is too many long before, any thread's.
    daemon_ = MHD_start_daemon(MHD_USE_EPOLL_INTERNAL_THREAD | MHD_USE_ITC | MHD_ALLOW_SUSPEND_RESUME, 0, nullptr,
                               nullptr, &Request, this, MHD_OPTION_LISTEN_SOCKET, fd, MHD_OPTION_THREAD_POOL_SIZE,
                               kThreads, MHD_OPTION_CONNECTION_LIMIT, static_cast<unsigned>(2 * kThreads * most_),
                               MHD_OPTION_CONNECTION_TIMEOUT, kSilentSeconds, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
                               kConnectionBytes, MHD_OPTION_NOTIFY_CONNECTION, &Changed, this,
                               MHD_OPTION_NOTIFY_COMPLETED, &Completed, nullptr, MHD_OPTION_END);
    if (daemon_ == nullptr) MHD_destroy_response(no_memory_);
    return daemon_ != nullptr;
  }

 private:
  // Called when a request's headers are here, and again only where the page answers it: then `job` is there.
  static MHD_Result Request(void* self, MHD_Connection* from, const char* path, const char* method, const char*,
                            const char*, size_t*, void** job) {
    auto* const daemon = static_cast<Daemon*>(self);
    if (*job != nullptr) return Queue(from, std::move(static_cast<PageAnswers::Job*>(*job)->reply));
    const MHD_ConnectionInfo* const info = MHD_get_connection_info(from, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    daemon->connections_.Asked(static_cast<HttpConnections::Connection*>(info->socket_context));
    try {
      const bool reads = absl::string_view(method) == "GET" || absl::string_view(method) == "HEAD";
      if (daemon->answers_.page == nullptr || !reads || !absl::StartsWith(path, "/page/")) {
        return Answer(daemon->answers_, from, method, path);
      }
      auto asked = std::make_unique<PageAnswers::Job>(PageAnswers::Job{from, RequestOf(from, path), {}});
      if (!daemon->page_.Ask(asked.get())) {
        return Queue(from, MHD_HTTP_SERVICE_UNAVAILABLE, kPlain, "too many ask; try again\n");
      }
      *job = asked.release();  // ended by Completed
      return MHD_YES;
    } catch (const std::bad_alloc&) {
      return MHD_queue_response(from, MHD_HTTP_SERVICE_UNAVAILABLE, daemon->no_memory_);
    }
  }
  static void Completed(void*, MHD_Connection*, void** job, MHD_RequestTerminationCode) {
    delete static_cast<PageAnswers::Job*>(*job);
    *job = nullptr;
  }
  static void Changed(void* self, MHD_Connection* connection, void** context, MHD_ConnectionNotificationCode what) {
    HttpConnections& connections = static_cast<Daemon*>(self)->connections_;
    if (what == MHD_CONNECTION_NOTIFY_CLOSED) {
      return connections.Ended(static_cast<HttpConnections::Connection*>(*context));
    }
    *context = connections.Began(MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd);
  }

  const Answers answers_;
  HttpConnections connections_;
  const size_t most_;
  PageAnswers page_;
  MHD_Response* no_memory_ = nullptr;
  MHD_Daemon* daemon_ = nullptr;
};

HttpListener::HttpListener(std::string address, std::unique_ptr<Daemon> daemon)
    : address_(std::move(address)), daemon_(std::move(daemon)) {}

HttpListener::~HttpListener() = default;

absl::StatusOr<std::unique_ptr<HttpListener>> HttpListener::Open(const std::string& text, Answers answers) {
  const auto failed = [](absl::string_view why) {
    return absl::FailedPreconditionError(absl::StrCat("metrics.listen: ", why));
  };
  absl::StatusOr<Address> address = ParseAddress(text);
  if (!address.ok()) return failed(address.status().message());
  const absl::StatusOr<int> fd = BindPort(&*address);
  if (!fd.ok()) return failed(fd.status().message());
  if (listen(*fd, SOMAXCONN) != 0) {
    close(*fd);
    return failed(absl::StrCat(address->ToString(), " is in use"));
  }
  auto daemon = std::make_unique<Daemon>(std::move(answers), MostConnections());
  if (!daemon->Start(*fd)) {
    close(*fd);
    return failed("the system has no thread or no memory for it");
  }
  return std::unique_ptr<HttpListener>(new HttpListener(address->ToString(), std::move(daemon)));
}

}  // namespace seine
