// The connections of the HTTP listener. A client that sends or reads nothing takes no thread, but a descriptor and some
// memory: so there is a most, and a new connection ends those that are too slow, or the oldest.
//
// Thread-safe.
#ifndef SEINE_SERVICE_METRICS_HTTP_CONNECTIONS_H_
#define SEINE_SERVICE_METRICS_HTTP_CONNECTIONS_H_

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <list>
#include <mutex>

namespace seine {

class HttpConnections {
 public:
  static constexpr std::chrono::milliseconds kToAsk{1000};    // for a whole request
  static constexpr std::chrono::milliseconds kToRead{10000};  // for the whole answer
  struct Connection;

  // A new connection ends others beyond `most`: the oldest without a request, or else the oldest.
  explicit HttpConnections(size_t most);
  ~HttpConnections();

  // `fd` stays the caller's, who keeps it open until Ended. Null where there is no memory: the connection is ended.
  Connection* Began(int fd);
  void Asked(Connection* connection);  // its request is here
  void Ended(Connection* connection);
  // Waits until every request that is here is answered, at most `time`.
  void WaitForAnswers(std::chrono::milliseconds time);

 private:
  using List = std::list<Connection>;
  using Clock = std::chrono::steady_clock;
  void CutOld(List* list, Clock::duration time, Clock::time_point now);  // needs mutex_

  const size_t most_;
  std::mutex mutex_;
  std::condition_variable answered_;
  // Guarded by mutex_; the oldest first. Those of cut_ are shut down, and end as soon as their thread sees it.
  List silent_, asked_, cut_;
};

}  // namespace seine

#endif  // SEINE_SERVICE_METRICS_HTTP_CONNECTIONS_H_
