// What both ways of serving share: from absl::Status to gRPC's with its details trailer, counting, and the checks
// between the stages of a call.
#ifndef SEINE_SERVICE_RPC_H_
#define SEINE_SERVICE_RPC_H_

#include <grpcpp/grpcpp.h>

#include <chrono>

#include "absl/status/status.h"
#include "service/core.h"
#include "service/error.h"

namespace seine {

inline grpc::Status ToGrpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  v1::Status details;
  ToProto(status, &details);
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), details.message(), details.SerializeAsString());
}

// Ends every call that has entered: counts it, logs what is worth a line and gives its status to the wire.
inline grpc::Status Finished(Core& core, const char* method, const absl::Status& status) {
  core.calls.fetch_add(1, std::memory_order_relaxed);
  if (!status.ok()) {
    core.errors.fetch_add(1, std::memory_order_relaxed);
    core.log.Failed(method, status);
  }
  if (core.log.WantsEvictions()) core.log.EvictedByThemselves(core.catalog.List());
  core.under_way.Leave();
  return ToGrpc(status);
}

// Not OK: nobody waits for the answer any more, so the next stage is not begun.
inline absl::Status StillWanted(const grpc::ServerContextBase& context) {
  if (context.deadline() <= std::chrono::system_clock::now()) {
    return absl::DeadlineExceededError("the deadline passed before the work began");
  }
  if (context.IsCancelled()) return absl::CancelledError("cancelled by the client before the work began");
  return absl::OkStatus();
}

inline absl::Status QueueFull(const Core& core) {
  return Overloaded("QUEUE_FULL", "the server's queue is full; try again", absl::Milliseconds(20));
}

inline absl::Status ShuttingDown() { return absl::UnavailableError("the server is shutting down"); }

}  // namespace seine

#endif  // SEINE_SERVICE_RPC_H_
