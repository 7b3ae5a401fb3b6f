// Calls for methods that the server does not have. They are told so. Each counts as a reset of its connection
// (reset_window.h) as soon as it comes: gRPC would tell of it when thousands of a flood have come, and does not tell
// whether the client of such a call has waited.
//
// Thread-safe.
#ifndef SEINE_SERVICE_TRANSPORT_UNKNOWN_CALLS_H_
#define SEINE_SERVICE_TRANSPORT_UNKNOWN_CALLS_H_

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/grpcpp.h>

#include "service/core.h"
#include "service/under_way/open_calls.h"

namespace seine {

class UnknownCalls {
 public:
  UnknownCalls(Core& core, AliveCount& alive) : core_(core), alive_(alive) {}
  UnknownCalls(const UnknownCalls&) = delete;
  UnknownCalls& operator=(const UnknownCalls&) = delete;

  grpc::AsyncGenericService* service() { return &service_; }  // for the builder
  // The server is up: calls come out of `queue` as events.
  void Start(grpc::ServerCompletionQueue* queue);

 private:
  friend class UnknownCall;
  void Offer();

  Core& core_;
  AliveCount& alive_;
  grpc::AsyncGenericService service_;
  grpc::ServerCompletionQueue* queue_ = nullptr;
};

}  // namespace seine

#endif  // SEINE_SERVICE_TRANSPORT_UNKNOWN_CALLS_H_
