// Messages to and from the bytes of the wire.
#ifndef SEINE_SERVICE_TRANSPORT_MESSAGE_BYTES_H_
#define SEINE_SERVICE_TRANSPORT_MESSAGE_BYTES_H_

#include <grpcpp/impl/codegen/proto_utils.h>
#include <grpcpp/support/byte_buffer.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "service/calls/error.h"

namespace seine {

// INVALID_ARGUMENT: the bytes are no such message. Lets go of them.
template <typename Message>
absl::Status Parse(grpc::ByteBuffer* bytes, Message* message) {
  const bool parsed = grpc::SerializationTraits<Message>::Deserialize(bytes, message).ok();
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
