// One service of the contract on the wire. All methods are registered as streams of bytes in both directions, which
// looks the same to a client: so a call is known by its headers before its message is read, and what cannot be parsed
// is answered in our words.
#ifndef SEINE_SERVICE_TRANSPORT_WIRE_SERVICE_H_
#define SEINE_SERVICE_TRANSPORT_WIRE_SERVICE_H_

#include <grpcpp/grpcpp.h>
#include <grpcpp/impl/rpc_service_method.h>
#include <grpcpp/impl/service_type.h>
#include <grpcpp/support/async_stream.h>
#include <grpcpp/support/byte_buffer.h>

#include <deque>
#include <string>

#include "absl/strings/str_cat.h"
#include "service/transport/event.h"

namespace seine {

using Wire = grpc::ServerAsyncReaderWriter<grpc::ByteBuffer, grpc::ByteBuffer>;

class WireService final : public grpc::Service {
 public:
  explicit WireService(const char* full_name) : full_name_(full_name) {}
  const char* full_name() const { return full_name_; }

  // Before the server is built. Returns the method's number.
  int Add(const char* method) {
    paths_.push_back(absl::StrCat("/", full_name_, "/", method));
    AddMethod(new grpc::internal::RpcServiceMethod(paths_.back().c_str(), grpc::internal::RpcMethod::BIDI_STREAMING,
                                                   nullptr));
    const int number = static_cast<int>(paths_.size()) - 1;
    MarkMethodRaw(number);
    return number;
  }
  // `accepted` comes out of `queue` when a client calls the method.
  void Request(int method, grpc::ServerContext* context, Wire* wire, grpc::ServerCompletionQueue* queue,
               Event* accepted) {
    RequestAsyncBidiStreaming(method, context, wire, queue, queue, accepted->tag());
  }

 private:
  const char* const full_name_;
  std::deque<std::string> paths_;  // gRPC keeps pointers into them
};

}  // namespace seine

#endif  // SEINE_SERVICE_TRANSPORT_WIRE_SERVICE_H_
