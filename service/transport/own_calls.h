// Calls that a server makes of itself, through gRPC and without a connection.
#ifndef SEINE_SERVICE_TRANSPORT_OWN_CALLS_H_
#define SEINE_SERVICE_TRANSPORT_OWN_CALLS_H_

#include <grpcpp/grpcpp.h>

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>

namespace seine {

// Thread-safe.
class OwnCalls {
 public:
  // `channel`: a channel to the server; nullptr while it does not serve yet.
  explicit OwnCalls(std::function<std::shared_ptr<grpc::Channel>()> channel);

  // Waits for the answer. UNAVAILABLE: the server is starting or shutting down.
  grpc::Status Unary(const std::string& path, const grpc::ByteBuffer& request, grpc::ClientContext* context,
                     grpc::ByteBuffer* answer);

  // Ends the calls under way and waits for them; no other is made from now on. Before the gRPC server shuts down: on a
  // channel to one that has, gRPC 1.51 calls through a null pointer.
  void Close();

 private:
  const std::function<std::shared_ptr<grpc::Channel>()> channel_;
  std::mutex mutex_;
  std::condition_variable none_left_;
  std::set<grpc::ClientContext*> under_way_;  // guarded by mutex_
  bool closed_ = false;                       // guarded by mutex_
};

}  // namespace seine

#endif  // SEINE_SERVICE_TRANSPORT_OWN_CALLS_H_
