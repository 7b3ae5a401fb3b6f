// The wire contract's services for one gRPC server, by gRPC's asynchronous API: all calls are events of completion
// queues. Decode streams have queues and threads of their own (decode_lanes.h). All other calls, and health:
//
// Default: come out of a queue whose two threads do nothing that takes long, so that they always listen.
// Polling: come out of the one Decode lane's queue. Its thread spins while a Decode stream is open, and polls for the
//   whole server, so no wake-up (20-35 us each) stands between a request and its answer. gRPC's epoll engine has one
//   poller at a time for all queues of a process: a thread that slept in another queue would often be that one, and
//   every event would first have to wake it. Price: a busy core while a Decode stream is open.
#ifndef SEINE_SERVICE_SERVICES_H_
#define SEINE_SERVICE_SERVICES_H_

#include <grpcpp/grpcpp.h>

#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "service/core.h"
#include "service/transport/decode_lanes.h"
#include "service/transport/health.h"
#include "service/transport/reflection/reflection_calls.h"
#include "service/transport/served_calls.h"
#include "service/transport/unknown_calls.h"
#include "service/under_way/open_calls.h"

namespace seine {

// Register, Start, Drain and Stop are called once each, in this order, from one thread.
class Services {
 public:
  Services(Core& core, bool polling);
  ~Services();
  // Before the server is built: services, and what they need of the builder.
  void Register(grpc::ServerBuilder* builder);
  void Start();  // the server is up
  // Health is NOT_SERVING from now on, whatever workers do.
  void Unready() { health_.Retire(); }
  // Whether health says SERVING.
  bool ready() const { return health_.serving(/*whole_server=*/true); }
  // New calls are refused already: those that wait for their clients end now, the others after what they are doing.
  void Drain();
  void Stop();  // the server has shut down

 private:
  void Work();     // on the queue of all calls but Decode
  void Monitor();  // cuts off who does not read, looks after health and memory
  void GuardMemory();
  int64_t AllowedBytes() const;
  void CountUncounted(bool may_trim);

  Core& core_;
  const bool polling_;
  AliveCount alive_;
  std::vector<std::unique_ptr<WireService>> wires_;
  ServedCalls calls_;
  Health health_;
  ReflectionCalls reflection_;
  UnknownCalls unknown_;
  DecodeLanes lanes_;
  std::unique_ptr<grpc::ServerCompletionQueue> queue_;  // of all calls but Decode; none where polling
  std::vector<std::thread> threads_;

  std::mutex mutex_;
  std::condition_variable ended_;
  bool stopped_ = false;  // guarded by mutex_
  std::thread monitor_;
};

}  // namespace seine

#endif  // SEINE_SERVICE_SERVICES_H_
