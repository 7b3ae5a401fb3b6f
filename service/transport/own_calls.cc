#include "service/transport/own_calls.h"

#include <grpcpp/generic/generic_stub.h>

#include <utility>

#include "absl/cleanup/cleanup.h"

namespace seine {

OwnCalls::OwnCalls(std::function<std::shared_ptr<grpc::Channel>()> channel) : channel_(std::move(channel)) {}

grpc::Status OwnCalls::Unary(const std::string& path, const grpc::ByteBuffer& request, grpc::ClientContext* context,
                             grpc::ByteBuffer* answer) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (closed_) return {grpc::StatusCode::UNAVAILABLE, "the server is shutting down"};
    under_way_.insert(context);
  }
  const absl::Cleanup over = [this, context] {  // once nothing of the channel is left
    const std::lock_guard<std::mutex> lock(mutex_);
    under_way_.erase(context);
    if (under_way_.empty()) none_left_.notify_all();
  };
  const std::shared_ptr<grpc::Channel> channel = channel_();
  if (channel == nullptr) return {grpc::StatusCode::UNAVAILABLE, "the server is starting"};
  grpc::GenericStub stub(channel);
  grpc::CompletionQueue queue;
  grpc::Status status;
  const auto call = stub.PrepareUnaryCall(context, path, request, &queue);
  call->StartCall();
  call->Finish(answer, &status, &queue);
  void* tag = nullptr;
  bool ok = false;
  queue.Next(&tag, &ok);
  return status;
}

void OwnCalls::Close() {
  std::unique_lock<std::mutex> lock(mutex_);
  closed_ = true;
  for (grpc::ClientContext* context : under_way_) context->TryCancel();
  none_left_.wait(lock, [this] { return under_way_.empty(); });
}

}  // namespace seine
