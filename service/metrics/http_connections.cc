#include "service/metrics/http_connections.h"

#include <sys/socket.h>

#include <new>

namespace seine {

struct HttpConnections::Connection {
  int fd = -1;
  Clock::time_point since;  // when it began, or when its request was here
  List* list = nullptr;     // that it is in, and where
  List::iterator self;
};

HttpConnections::HttpConnections(size_t most) : most_(most) {}

HttpConnections::~HttpConnections() = default;

void HttpConnections::CutOld(List* list, Clock::duration time, Clock::time_point now) {
  while (!list->empty() && (silent_.size() + asked_.size() >= most_ || now - list->front().since > time)) {
    Connection& oldest = list->front();
    shutdown(oldest.fd, SHUT_RDWR);
    oldest.list = &cut_;
    cut_.splice(cut_.end(), *list, oldest.self);
  }
}

HttpConnections::Connection* HttpConnections::Began(int fd) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto now = Clock::now();
  CutOld(&silent_, kToAsk, now);
  CutOld(&asked_, kToRead, now);
  try {
    silent_.emplace_back();
  } catch (const std::bad_alloc&) {
    shutdown(fd, SHUT_RDWR);
    return nullptr;
  }
  const auto self = std::prev(silent_.end());
  self->fd = fd;
  self->since = now;
  self->list = &silent_;
  self->self = self;
  return &*self;
}

void HttpConnections::Asked(Connection* connection) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (connection == nullptr || connection->list != &silent_) return;
  connection->since = Clock::now();
  connection->list = &asked_;
  asked_.splice(asked_.end(), silent_, connection->self);
}

void HttpConnections::Ended(Connection* connection) {
  if (connection == nullptr) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  connection->list->erase(connection->self);
  answered_.notify_all();
}

void HttpConnections::WaitForAnswers(std::chrono::milliseconds time) {
  std::unique_lock<std::mutex> lock(mutex_);
  answered_.wait_for(lock, time, [this] { return asked_.empty(); });
}

}  // namespace seine
