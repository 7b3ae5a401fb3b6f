// The list of RPCs: what is served, registered and checked for health comes from it. Decode, a stream in both
// directions, has classes of its own (decode_lanes.h).
#ifndef SEINE_SERVICE_TRANSPORT_RPC_METHODS_H_
#define SEINE_SERVICE_TRANSPORT_RPC_METHODS_H_

#include <google/protobuf/message.h>
#include <grpcpp/support/byte_buffer.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "service/access/role.h"
#include "service/core.h"
#include "service/scheduling/call_costs.h"

namespace seine {

// Takes one message, whose bytes it lets go of, and writes the answer so far. Where an allocation fails,
// RESOURCE_EXHAUSTED, or UNKNOWN of a call that changes something; nothing is thrown. Not thread-safe.
using MessageHandler = std::function<absl::Status(grpc::ByteBuffer* request, grpc::ByteBuffer* response)>;

// The same without bytes, for a caller in the same process. The messages are of the method's types; of a method that
// takes pieces `response` is that of the pieces before.
using MessageCall = absl::Status (*)(Core& core, const google::protobuf::Message& request,
                                     google::protobuf::Message* response);

enum class Weight : uint8_t {
  kLight,  // answered where it is received: takes microseconds, waits for nothing
  kHeavy,  // goes through the executor's queue
};

struct RpcMethod {
  const char* service;  // "seine.v1.IndexService"
  const char* name;     // "CreateIndex"
  Weight weight;
  Role role;     // that the caller must have at least
  bool changes;  // its answer must be sent, however much is under way
  bool pieces;   // a client's stream of messages, answered at its end; else one message
  MessageHandler (*open)(Core& core);
  MessageCall call;
};

const std::vector<RpcMethod>& RpcMethods();

// The contract's services, each once; and that which has Decode.
const std::vector<const char*>& ServiceNames();
inline constexpr char kDecodeService[] = "seine.v1.RetrievalService";
// Role for Decode; its appends need kWriter.
inline constexpr Role kDecodeRole = Role::kReader;
// Whether each message of the method counts against the tenant's steps per second, as each step of Decode does.
inline bool IsStep(const RpcMethod& method) { return absl::string_view(method.service) == kDecodeService; }
inline CostKind CostKindOf(const RpcMethod& method) {
  if (!IsStep(method)) return CostKind::kWhole;
  return method.changes ? CostKind::kAppend : CostKind::kSearch;
}

}  // namespace seine

#endif  // SEINE_SERVICE_TRANSPORT_RPC_METHODS_H_
