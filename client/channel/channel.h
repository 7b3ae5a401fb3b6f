// Channels and their errors: what grpc_client.cc and decode_stream.cc share. Internal to client/; the only headers with
// gRPC.
#ifndef SEINE_CLIENT_CHANNEL_CHANNEL_H_
#define SEINE_CLIENT_CHANNEL_CHANNEL_H_

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/client.h"

namespace seine::client {

// A connected channel. Every channel has its own connection, so that a polling stream's socket is watched by nobody
// else.
absl::StatusOr<std::shared_ptr<grpc::Channel>> ConnectChannel(const std::string& endpoint, const Options& options);

absl::Status FromGrpc(const grpc::Status& status, const std::string& endpoint);

// A stream over gRPC, with a connection of its own. `fallback`: DecodeStream::fallback().
absl::StatusOr<std::unique_ptr<DecodeStream>> OpenDecodeStream(const std::string& endpoint, const Options& options,
                                                               Transport transport, std::string fallback);
// A stream over shared memory, whose channel is asked for over `channel`.
absl::StatusOr<std::unique_ptr<DecodeStream>> OpenSharedMemoryStream(const std::shared_ptr<grpc::Channel>& channel,
                                                                     const std::string& endpoint,
                                                                     const Options& options, Transport transport);
// The transport that is asked for, or what Transport::kAuto finds.
absl::StatusOr<std::unique_ptr<DecodeStream>> OpenAnyDecodeStream(const std::shared_ptr<grpc::Channel>& channel,
                                                                  const std::string& endpoint, const Options& options,
                                                                  Transport transport);
std::unique_ptr<JsonCall> OpenJsonCall(const std::shared_ptr<grpc::Channel>& channel, const std::string& endpoint,
                                       absl::Duration timeout, const Method& method);

}  // namespace seine::client

#endif  // SEINE_CLIENT_CHANNEL_CHANNEL_H_
