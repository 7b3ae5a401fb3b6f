// What all served calls share: from absl::Status to gRPC's with its details trailer, counting, and the checks between
// the stages of a call.
#ifndef SEINE_SERVICE_TRANSPORT_RPC_H_
#define SEINE_SERVICE_TRANSPORT_RPC_H_

#include <grpcpp/grpcpp.h>
#include <grpcpp/support/byte_buffer.h>

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "absl/status/status.h"
#include "kernels/stop.h"
#include "service/catalog.h"
#include "service/core.h"
#include "service/event_log.h"
#include "service/fields/error.h"
#include "service/transport/presented.h"
#include "service/transport/sockets/connections.h"
#include "service/under_way/call_counts.h"
#include "service/under_way/calls_under_way.h"

namespace seine {

inline grpc::Status ToGrpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  v1::Status details;
  ToProto(status, &details);
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), details.message(), details.SerializeAsString());
}

// A message without fields. (A ByteBuffer begins as none at all.)
inline grpc::ByteBuffer EmptyMessage() {
  const grpc::Slice nothing;
  return grpc::ByteBuffer(&nothing, 1);
}

// Ends every call that has entered: counts it, logs what is worth a line and gives its status to the wire.
inline grpc::Status Finished(Core& core, const CallRecord& call, const absl::Status& status) {
  core.calls.fetch_add(1, std::memory_order_relaxed);
  if (!status.ok()) core.errors.fetch_add(1, std::memory_order_relaxed);
  core.call_counts.Ended(CallCounts::NumberOf(call.method), status.code(), call.began);
  core.log.Ended(call, status);
  if (core.log.WantsEvictions()) core.log.EvictedByThemselves(core.catalog.List());
  core.under_way.Leave();
  return ToGrpc(status);
}

// Turns a ServerContext's raw_deadline() into the time of the server's clock. Its deadline() would not do: a deadline
// of centuries overflows 64 bits of nanoseconds.
inline StopToken::Clock::time_point DeadlineOf(gpr_timespec deadline) {
  constexpr int64_t kYear = 365 * 24 * 3600;
  const gpr_timespec left =
      gpr_time_sub(gpr_convert_clock_type(deadline, GPR_CLOCK_REALTIME), gpr_now(GPR_CLOCK_REALTIME));
  if (left.tv_sec > kYear) return StopToken::Clock::time_point::max();
  return StopToken::Clock::now() + std::chrono::seconds(std::max<int64_t>(left.tv_sec, -1)) +
         std::chrono::nanoseconds(left.tv_nsec);
}

// How a call ended. `reset`: its client ended it before a message came. A deadline travels as the time that is left: a
// server that is late to hear of a call takes it for later than the client does.
inline CallEnd EndOf(bool reset, gpr_timespec deadline) {
  constexpr auto kNear = std::chrono::seconds(1);
  if (!reset) return CallEnd::kServed;
  return DeadlineOf(deadline) <= StopToken::Clock::now() + kNear ? CallEnd::kLateReset : CallEnd::kReset;
}

// Tells a call's connection that the call is over. `peer`: as gRPC named it when the call came; later it may not know.
inline void CountEnd(Core& core, const std::string& peer, CallEnd end) {
  if (core.connections.Ended(peer, end)) core.log.CutOffForResets(PeerName(peer));
}

// Not OK: nobody waits for the answer any more, so the next stage is not begun.
inline absl::Status StillWanted(const StopToken& token) {
  switch (token.reason()) {
    case StopReason::kNone:
      return absl::OkStatus();
    case StopReason::kDeadline:
      return absl::DeadlineExceededError("the deadline passed before the work began");
    case StopReason::kCancelled:
      return absl::CancelledError("cancelled by the client before the work began");
    case StopReason::kShutdown:
      break;
  }
  return absl::UnavailableError("the server is shutting down");
}

inline absl::Status QueueFull(const Core& core) {
  return Overloaded("QUEUE_FULL", "the server's queue is full; try again", absl::Milliseconds(20));
}

inline absl::Status MemoryShort() {
  return Overloaded("MEMORY_SHORT", "messages under way take more memory than they may; try again",
                    absl::Milliseconds(200));
}

inline absl::Status ShuttingDown() { return absl::UnavailableError("the server is shutting down"); }

}  // namespace seine

#endif  // SEINE_SERVICE_TRANSPORT_RPC_H_
