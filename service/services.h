// The wire contract's services for one gRPC server. Two ways of serving the same calls (calls.h); in both, Decode
// streams have threads of their own (decode_lanes.h):
//
// Callback (default): gRPC's callback API; threads sleep while nothing arrives.
// Polling: the thread of the Decode streams spins on its completion queue and polls for the whole server, so no wake-up
//   (20-35 us each) stands between a request and its answer. gRPC's epoll engine has one poller at a time for all
//   queues of a process; any thread of the callback API would sleep in it and every event would first have to wake that
//   thread. So here the other calls run on gRPC's synchronous threads, which do not poll. Price: a busy core while a
//   Decode stream is open.
#ifndef SEINE_SERVICE_SERVICES_H_
#define SEINE_SERVICE_SERVICES_H_

#include <grpcpp/grpcpp.h>

#include <memory>

#include "service/core.h"

namespace seine {

class Services {
 public:
  virtual ~Services() = default;
  // Before the server is built: services, and what they need of the builder.
  virtual void Register(grpc::ServerBuilder* builder) = 0;
  // The server is up.
  virtual void Start(grpc::Server* server) = 0;
  // Health becomes NOT_SERVING; streams end as soon as what they are doing is answered.
  virtual void Drain() = 0;
  // The server has shut down: no call is left.
  virtual void Stop() = 0;
};

std::unique_ptr<Services> MakeCallbackServices(Core& core);
std::unique_ptr<Services> MakePollingServices(Core& core);

}  // namespace seine

#endif  // SEINE_SERVICE_SERVICES_H_
