#include "service/transport/rpc_methods.h"

#include <memory>
#include <new>
#include <type_traits>

#include "seine/v1/admin_service.grpc.pb.h"
#include "seine/v1/eviction_service.grpc.pb.h"
#include "seine/v1/index_service.grpc.pb.h"
#include "seine/v1/retrieval_service.grpc.pb.h"
#include "seine/v1/sequence_service.grpc.pb.h"
#include "seine/v1/shared_memory_service.grpc.pb.h"
#include "seine/v1/subspace_service.grpc.pb.h"
#include "service/access/audit_log.h"
#include "service/calls/call_list.h"
#include "service/calls/calls.h"
#include "service/fields/error.h"
#include "service/transport/message_bytes.h"
#include "service/transport/rpc.h"

namespace seine {
namespace {

template <bool changes, typename Function>
absl::Status WithoutThrowing(Function function) {
  try {
    return function();
  } catch (const std::bad_alloc&) {
    // It may have happened after the change, while the answer was written.
    return changes ? absl::UnknownError("the server has no memory; whether the call was applied is not known")
                   : NoMemory();
  }
}

// Whatever changes something, but for the hot path.
template <typename Request>
constexpr bool IsAudited(bool changes) {
  return changes && !std::is_same_v<Request, v1::AppendRequest> && !std::is_same_v<Request, v1::AppendStreamRequest>;
}

// `is_last`: the response is not used again.
template <typename Request, typename Response, absl::Status (*call)(Core&, const Request&, Response*), bool changes,
          bool is_last>
absl::Status Take(Core& core, grpc::ByteBuffer* in, Response* response, grpc::ByteBuffer* out) {
  return WithoutThrowing<changes>([&]() -> absl::Status {
    Request request;
    if (auto s = Parse(in, &request); !s.ok()) return s;
    const absl::Status status = call(core, request, response);
    if constexpr (IsAudited<Request>(changes)) {
      if (core.audit != nullptr) core.audit->Record(request, *response, status);
    }
    if (!status.ok()) return status;
    return is_last ? SerialiseLast(response, out) : Serialise(*response, out);
  });
}

template <typename Request, typename Response, absl::Status (*call)(Core&, const Request&, Response*), bool changes>
absl::Status Plain(Core& core, const google::protobuf::Message& request, google::protobuf::Message* response) {
  return WithoutThrowing<changes>(
      [&] { return call(core, static_cast<const Request&>(request), static_cast<Response*>(response)); });
}

template <typename Request, typename Response, absl::Status (*call)(Core&, const Request&, Response*), bool changes>
MessageHandler One(Core& core) {
  return [&core](grpc::ByteBuffer* in, grpc::ByteBuffer* out) {
    Response response;
    return Take<Request, Response, call, changes, /*is_last=*/true>(core, in, &response, out);
  };
}

// The totals grow from piece to piece.
template <typename Request, typename Response, absl::Status (*call)(Core&, const Request&, Response*)>
MessageHandler Each(Core& core) {
  return [&core, totals = std::make_shared<Response>()](grpc::ByteBuffer* in, grpc::ByteBuffer* out) {
    return Take<Request, Response, call, /*changes=*/true, /*is_last=*/false>(core, in, totals.get(), out);
  };
}

template <typename Service>
constexpr RpcMethod Of(const char* name, Weight weight, Role role, bool changes, MessageHandler (*open)(Core&),
                       MessageCall call) {
  return {Service::service_full_name(), name, weight, role, changes, /*pieces=*/false, open, call};
}

}  // namespace

const std::vector<RpcMethod>& RpcMethods() {
  static const auto* const methods = new std::vector<RpcMethod>{
#define SEINE_METHOD(service, method, weight, role, changes)                         \
  Of<v1::service>(#method, Weight::weight, Role::role, changes,                      \
                  &One<v1::method##Request, v1::method##Response, &method, changes>, \
                  &Plain<v1::method##Request, v1::method##Response, &method, changes>),
      SEINE_FOR_EACH_CALL(SEINE_METHOD)
#undef SEINE_METHOD
          {v1::RetrievalService::service_full_name(), "AppendStream", Weight::kHeavy, Role::kWriter, true,
           /*pieces=*/true, &Each<v1::AppendStreamRequest, v1::AppendStreamResponse, &AppendPiece>,
           &Plain<v1::AppendStreamRequest, v1::AppendStreamResponse, &AppendPiece, /*changes=*/true>},
  };
  return *methods;
}

const std::vector<const char*>& ServiceNames() {
  static const auto* const names = new std::vector<const char*>{
      v1::IndexService::service_full_name(),       v1::SequenceService::service_full_name(),
      v1::AdminService::service_full_name(),       v1::RetrievalService::service_full_name(),
      v1::EvictionService::service_full_name(),    v1::SubspaceService::service_full_name(),
      v1::SharedMemoryService::service_full_name()};
  return *names;
}

}  // namespace seine
