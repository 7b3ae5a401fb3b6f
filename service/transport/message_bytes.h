// Messages to and from the bytes of the wire.
#ifndef SEINE_SERVICE_TRANSPORT_MESSAGE_BYTES_H_
#define SEINE_SERVICE_TRANSPORT_MESSAGE_BYTES_H_

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream.h>
#include <google/protobuf/message.h>
#include <grpcpp/impl/codegen/proto_utils.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/proto_buffer_reader.h>
#include <grpcpp/support/slice.h>

#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kernels/yield.h"
#include "service/fields/error.h"

namespace seine {

// Hands out the bytes of a message that is parsed. Long work makes way (yield.h) after each 64 KiB: a message of some
// megabytes is copied to memory that is new, which takes milliseconds.
class MessageReader final : public grpc::ProtoBufferReader {
 public:
  static constexpr int64_t kPiece = 64 << 10;  // or a slice of the message, whichever is longer

  using ProtoBufferReader::ProtoBufferReader;
  bool Next(const void** data, int* size) override {
    if (ByteCount() >= piece_end_) {
      if (current_yielder != nullptr) current_yielder->Yield();
      piece_end_ = ByteCount() + kPiece;
    }
    return ProtoBufferReader::Next(data, size);
  }

 private:
  int64_t piece_end_ = kPiece;
};

// INVALID_ARGUMENT: the bytes are no such message. Lets go of them.
template <typename Message>
absl::Status Parse(grpc::ByteBuffer* bytes, Message* message) {
  bool parsed = false;
  {
    MessageReader reader(bytes);
    parsed = reader.status().ok() && message->ParseFromZeroCopyStream(&reader);
  }
  bytes->Clear();
  if (parsed) return absl::OkStatus();
  return FieldError("MALFORMED", "request", absl::StrCat("the bytes are no message ", message->GetTypeName()));
}

inline absl::Status TooLargeForMessage() {
  return absl::ResourceExhaustedError("the answer cannot be written: it is too large for a message");
}

template <typename Message>
absl::Status Serialise(const Message& message, grpc::ByteBuffer* bytes) {
  bytes->Clear();
  bool own = false;
  if (grpc::SerializationTraits<Message>::Serialize(message, bytes, &own).ok()) return absl::OkStatus();
  return TooLargeForMessage();
}

// Takes the bytes of a message that lives as long as they do: tensors stay where they are, and only what stands between
// them is written anew, piece behind piece in blocks that the pieces share.
class SharedMessageWriter final : public google::protobuf::io::ZeroCopyOutputStream {
 public:
  explicit SharedMessageWriter(std::shared_ptr<const google::protobuf::Message> message)
      : message_(std::move(message)) {}

  bool Next(void** data, int* size) override {
    if (free_.size() < kLeastPiece) free_ = grpc::Slice(size_t{kBlock});
    slices_.push_back(std::exchange(free_, grpc::Slice()));
    *data = const_cast<uint8_t*>(slices_.back().begin());
    *size = static_cast<int>(slices_.back().size());
    count_ += *size;
    return true;
  }
  void BackUp(int unused) override {
    const grpc::Slice piece = slices_.back();
    const size_t used = piece.size() - static_cast<size_t>(unused);
    free_ = piece.sub(used, piece.size());
    slices_.back() = piece.sub(0, used);
    count_ -= unused;
  }
  int64_t ByteCount() const override { return count_; }
  bool AllowsAliasing() const override { return true; }
  bool WriteAliasedRaw(const void* data, int size) override {
    slices_.emplace_back(const_cast<void*>(data), static_cast<size_t>(size), &LetGo, new Holder(message_));
    count_ += size;
    return true;
  }
  grpc::ByteBuffer Bytes() const { return grpc::ByteBuffer(slices_.data(), slices_.size()); }

 private:
  using Holder = std::shared_ptr<const google::protobuf::Message>;
  static constexpr size_t kBlock = 1024;     // a longer tensor is not copied
  static constexpr size_t kLeastPiece = 64;  // gRPC copies what is shorter than 24 bytes, and shares the rest
  static void LetGo(void* holder) { delete static_cast<Holder*>(holder); }

  const Holder message_;
  std::vector<grpc::Slice> slices_;
  grpc::Slice free_;  // the end of the last block
  int64_t count_ = 0;
};

// Serialises a message that is not used again, and may be large: what it holds is not held twice.
template <typename Message>
absl::Status SerialiseLast(Message* message, grpc::ByteBuffer* bytes) {
  constexpr size_t kWorthSharing = 256 << 10;
  if (message->ByteSizeLong() < kWorthSharing) return Serialise(*message, bytes);
  bytes->Clear();
  const auto shared = std::make_shared<Message>(std::move(*message));
  SharedMessageWriter writer(shared);
  {
    google::protobuf::io::CodedOutputStream coded(&writer);
    coded.EnableAliasing(true);
    if (!shared->SerializeToCodedStream(&coded)) return TooLargeForMessage();
  }
  *bytes = writer.Bytes();
  return absl::OkStatus();
}

}  // namespace seine

#endif  // SEINE_SERVICE_TRANSPORT_MESSAGE_BYTES_H_
