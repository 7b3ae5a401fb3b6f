// Security (security.h) as gRPC takes it. Internal to client/.
#ifndef SEINE_CLIENT_CHANNEL_CHANNEL_SECURITY_H_
#define SEINE_CLIENT_CHANNEL_CHANNEL_SECURITY_H_

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/security.h"

namespace seine::client {

// What makes a channel.
struct ChannelSecurity {
  std::shared_ptr<grpc::ChannelCredentials> credentials;
  std::string token;  // that its calls bring; empty: none
  bool tls = false;
};

// INVALID_ARGUMENT naming the field: half of TLS, a file that cannot be read, a token that would travel unprotected.
// `endpoint` has been checked.
absl::StatusOr<ChannelSecurity> SecurityFor(const std::string& endpoint, const Security& security);

// A channel whose calls bring the token, but for Decode: what looks at a call costs each of its messages, so that
// stream adds the token itself.
std::shared_ptr<grpc::Channel> MakeChannel(const std::string& target, const ChannelSecurity& security,
                                           const grpc::ChannelArguments& arguments);
void AddToken(const std::string& token, grpc::ClientContext* context);

// Why a TCP connection that has failed did so: refused, hung up, or TLS, in OpenSSL's words.
std::string WhyNoConnection(const std::shared_ptr<grpc::Channel>& channel, bool tls);

}  // namespace seine::client

#endif  // SEINE_CLIENT_CHANNEL_CHANNEL_SECURITY_H_
