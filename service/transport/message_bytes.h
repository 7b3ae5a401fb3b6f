// Messages to and from the bytes of the wire.
#ifndef SEINE_SERVICE_TRANSPORT_MESSAGE_BYTES_H_
#define SEINE_SERVICE_TRANSPORT_MESSAGE_BYTES_H_

#include <grpcpp/impl/codegen/proto_utils.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/proto_buffer_reader.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kernels/yield.h"
#include "service/calls/error.h"

namespace seine {

// Hands over the parts of a message, of some kilobytes each. Long work makes way between them.
class MessageReader final : public grpc::ProtoBufferReader {
 public:
  using grpc::ProtoBufferReader::ProtoBufferReader;
  bool Next(const void** data, int* size) override {
    MakeWay();
    return grpc::ProtoBufferReader::Next(data, size);
  }
};

// INVALID_ARGUMENT: the bytes are no such message. Lets go of them.
template <typename Message>
absl::Status Parse(grpc::ByteBuffer* bytes, Message* message) {
  const bool parsed = grpc::GenericDeserialize<MessageReader, Message>(bytes, message).ok();
  bytes->Clear();
  if (parsed) return absl::OkStatus();
  return FieldError("MALFORMED", "request", absl::StrCat("the bytes are no message ", message->GetTypeName()));
}

template <typename Message>
absl::Status Serialise(const Message& message, grpc::ByteBuffer* bytes) {
  bytes->Clear();
  bool own = false;
  if (grpc::SerializationTraits<Message>::Serialize(message, bytes, &own).ok()) return absl::OkStatus();
  return absl::ResourceExhaustedError("the answer cannot be written: it is too large for a message");
}

}  // namespace seine

#endif  // SEINE_SERVICE_TRANSPORT_MESSAGE_BYTES_H_
