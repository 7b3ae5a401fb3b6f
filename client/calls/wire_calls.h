// Calls over a channel, which the client and the Python module share. Internal to client/ and engines/.
#ifndef SEINE_CLIENT_CALLS_WIRE_CALLS_H_
#define SEINE_CLIENT_CALLS_WIRE_CALLS_H_

#include <google/protobuf/message.h>
#include <grpcpp/grpcpp.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "client/types.h"

namespace seine::client {

// Where calls go, and until when; `endpoint` is said in errors. InfiniteFuture(): no deadline.
struct CallTarget {
  const std::shared_ptr<grpc::Channel>& channel;
  const std::string& endpoint;
  absl::Time deadline = absl::InfiniteFuture();
};

// The method that takes such a request; a stream of requests gets this one. INVALID_ARGUMENT: none does, it streams
// answers, or its answer is of another type.
absl::Status CallUnary(const CallTarget& target, const google::protobuf::Message& request,
                       google::protobuf::Message* response);

// The most that one piece of an append may hold at the server, which is asked where `known` is 0: it does not change.
absl::StatusOr<int64_t> AskPieceBytes(const CallTarget& target, std::atomic<int64_t>* known);
// Sends items over one stream, cut into pieces. `progress` as Client::AppendStream's.
absl::StatusOr<AppendTotals> SendAppends(const CallTarget& target, absl::Span<const AppendItem> items,
                                         int64_t piece_bytes, const std::function<void(int64_t)>& progress);

}  // namespace seine::client

#endif  // SEINE_CLIENT_CALLS_WIRE_CALLS_H_
