// grpc.health.v1.Health of a server: Check and Watch. Answered where they are received, so that a busy server still
// says how it is. The two messages are read and written as the bytes they are: {1: service} and {1: status}.
#ifndef SEINE_SERVICE_TRANSPORT_HEALTH_H_
#define SEINE_SERVICE_TRANSPORT_HEALTH_H_

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <mutex>
#include <string>
#include <unordered_map>
#include <unordered_set>

#include "service/core.h"
#include "service/transport/wire_service.h"
#include "service/under_way/open_calls.h"

namespace seine {

class HealthCall;

// Thread-safe.
class Health {
 public:
  // Watches that a connection may have open: its clients may watch every service, also behind a proxy. One more is
  // RESOURCE_EXHAUSTED at once.
  static constexpr int kMostWatches = 64;

  Health(Core& core, AliveCount& alive);
  Health(const Health&) = delete;
  Health& operator=(const Health&) = delete;

  WireService* service() { return &service_; }
  void Start(grpc::ServerCompletionQueue* queue);
  // Tells the watchers that have been told something else, also of a drain. Does nothing once Retire was called.
  void Set(bool serving);
  // NOT_SERVING, for good.
  void Retire();
  // Whether a service serves, or the whole server: that does not while it drains.
  bool serving(bool whole_server) const { return serving_ && !(whole_server && core_.draining); }

 private:
  friend class HealthCall;
  void OfferCheck();
  void OfferWatch();
  void TellWatchers();  // needs mutex_
  // Counts a watch of the connection that gRPC names `peer`. False: it has as many as it may.
  bool Enter(const std::string& peer);
  void Left(const std::string& peer);

  Core& core_;
  AliveCount& alive_;
  WireService service_;
  const int check_, watch_;
  grpc::ServerCompletionQueue* queue_ = nullptr;
  std::atomic<bool> serving_{true};
  std::mutex mutex_;
  bool retired_ = false;                          // guarded by mutex_
  std::unordered_set<HealthCall*> watchers_;      // guarded by mutex_
  std::unordered_map<std::string, int> watches_;  // by connection; guarded by mutex_
};

}  // namespace seine

#endif  // SEINE_SERVICE_TRANSPORT_HEALTH_H_
