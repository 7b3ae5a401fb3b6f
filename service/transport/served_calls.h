// The calls of rpc_methods.h as gRPC serves them: received on a queue whose threads do nothing that takes long, worked
// on by the executor's threads, bounded in number, in bytes and in how long a client may leave an answer unread.
#ifndef SEINE_SERVICE_TRANSPORT_SERVED_CALLS_H_
#define SEINE_SERVICE_TRANSPORT_SERVED_CALLS_H_

#include <grpcpp/grpcpp.h>

#include <memory>
#include <vector>

#include "service/core.h"
#include "service/transport/rpc_methods.h"
#include "service/transport/wire_service.h"
#include "service/under_way/open_calls.h"

namespace seine {

class ServedCalls {
 public:
  ServedCalls(Core& core, AliveCount& alive) : core_(core), alive_(alive) {}
  ServedCalls(const ServedCalls&) = delete;
  ServedCalls& operator=(const ServedCalls&) = delete;

  // Before the server is built. `service` is one of RpcMethods().
  void Register(WireService* service);
  // The server is up: calls come out of `queue` as events.
  void Start(grpc::ServerCompletionQueue* queue);

 private:
  friend class ServedCall;
  struct Entry {
    const RpcMethod* method;
    WireService* service;
    int number;  // of the method in its service
  };
  void Offer(const Entry& entry);

  Core& core_;
  AliveCount& alive_;
  std::vector<Entry> entries_;
  grpc::ServerCompletionQueue* queue_ = nullptr;
};

}  // namespace seine

#endif  // SEINE_SERVICE_TRANSPORT_SERVED_CALLS_H_
