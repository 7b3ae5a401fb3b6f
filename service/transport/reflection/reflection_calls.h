// gRPC's server reflection, v1 and v1alpha: what services there are, and their protos. gRPC's own is synchronous: a
// flood of its calls piles up inside gRPC. Each call counts as a reset of its connection (reset_window.h) as soon as it
// comes, as unknown calls do: a client opens one.
//
// Thread-safe.
#ifndef SEINE_SERVICE_TRANSPORT_REFLECTION_REFLECTION_CALLS_H_
#define SEINE_SERVICE_TRANSPORT_REFLECTION_REFLECTION_CALLS_H_

#include <grpcpp/grpcpp.h>

#include <vector>

#include "service/core.h"
#include "service/transport/wire_service.h"
#include "service/under_way/open_calls.h"

namespace seine {

class ReflectionCalls {
 public:
  ReflectionCalls(Core& core, AliveCount& alive);
  ReflectionCalls(const ReflectionCalls&) = delete;
  ReflectionCalls& operator=(const ReflectionCalls&) = delete;

  void Register(grpc::ServerBuilder* builder);
  // The server is up: calls come out of `queue` as events.
  void Start(grpc::ServerCompletionQueue* queue);

 private:
  friend class ReflectionCall;
  struct Version {
    explicit Version(const char* name) : service(name), method(service.Add("ServerReflectionInfo")) {}
    WireService service;
    const int method;
  };
  void Offer(Version* version);

  Core& core_;
  AliveCount& alive_;
  Version v1_{"grpc.reflection.v1.ServerReflection"};
  Version v1alpha_{"grpc.reflection.v1alpha.ServerReflection"};
  std::vector<const char*> services_;  // names of all that the server has
  grpc::ServerCompletionQueue* queue_ = nullptr;
};

}  // namespace seine

#endif  // SEINE_SERVICE_TRANSPORT_REFLECTION_REFLECTION_CALLS_H_
