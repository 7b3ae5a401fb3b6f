#include "client/channel/channel_security.h"

#include <grpcpp/support/client_interceptor.h>

#include <chrono>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "profile/io/endpoint.h"
#include "profile/io/file.h"
#include "seine/v1/admin_service.grpc.pb.h"

namespace seine::client {
namespace {

namespace experimental = grpc::experimental;

constexpr char kMetadata[] = "authorization";
constexpr uint64_t kMostPemBytes = 1 << 20;

std::string Bearer(const std::string& token) { return absl::StrCat("Bearer ", token); }

class TokenInterceptor final : public experimental::Interceptor {
 public:
  explicit TokenInterceptor(const std::string& token) : token_(token) {}
  void Intercept(experimental::InterceptorBatchMethods* methods) override {
    if (methods->QueryInterceptionHookPoint(experimental::InterceptionHookPoints::PRE_SEND_INITIAL_METADATA)) {
      methods->GetSendInitialMetadata()->emplace(kMetadata, Bearer(token_));
    }
    methods->Proceed();
  }

 private:
  const std::string& token_;  // of the factory, which lives as long as the channel
};

class TokenInterceptors final : public experimental::ClientInterceptorFactoryInterface {
 public:
  explicit TokenInterceptors(std::string token) : token_(std::move(token)) {}
  experimental::Interceptor* CreateClientInterceptor(experimental::ClientRpcInfo* call) override {
    if (absl::EndsWith(call->method(), "/Decode")) return nullptr;
    return new TokenInterceptor(token_);  // gRPC deletes it
  }

 private:
  const std::string token_;
};

absl::Status ReadPem(const char* field, const std::string& path, std::string* text) {
  if (path.empty()) return absl::OkStatus();
  const absl::StatusOr<File> file = File::Open(path);
  absl::StatusOr<std::string> read = file.ok() ? file->ReadAll(kMostPemBytes) : file.status();
  if (!read.ok()) return absl::InvalidArgumentError(absl::StrCat(field, ": ", read.status().message()));
  *text = *std::move(read);
  // gRPC says nothing of a bad file; what is bad in PEM itself is the connection's failure.
  if (absl::StrContains(*text, "-----BEGIN ")) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(field, ": ", path, ": is no PEM"));
}

}  // namespace

absl::StatusOr<ChannelSecurity> SecurityFor(const std::string& endpoint, const Security& security) {
  ChannelSecurity out;
  absl::StatusOr<std::string> token = ReadToken(security);
  if (!token.ok()) return token.status();
  out.token = *std::move(token);
  if (security.tls_cert.empty() != security.tls_key.empty()) {
    return absl::InvalidArgumentError(security.tls_key.empty() ? "tls_key: is missing beside tls_cert"
                                                               : "tls_cert: is missing beside tls_key");
  }
  if (security.tls_ca.empty() && !security.tls_cert.empty()) {
    return absl::InvalidArgumentError("tls_ca: is missing beside tls_cert; it says which server is trusted");
  }
  out.tls = !security.tls_ca.empty() && SocketPath(endpoint).empty();
  if (!out.tls) {
    if (!out.token.empty() && SocketPath(endpoint).empty() && !IsLoopback(endpoint)) {
      return absl::InvalidArgumentError(
          absl::StrCat("token: would travel to ", endpoint, " for all to read; tls_ca makes it TLS"));
    }
    out.credentials = grpc::InsecureChannelCredentials();
    return out;
  }
  grpc::SslCredentialsOptions options;
  absl::Status status = ReadPem("tls_ca", security.tls_ca, &options.pem_root_certs);
  status.Update(ReadPem("tls_cert", security.tls_cert, &options.pem_cert_chain));
  status.Update(ReadPem("tls_key", security.tls_key, &options.pem_private_key));
  if (!status.ok()) return status;
  out.credentials = grpc::SslCredentials(options);
  return out;
}

std::shared_ptr<grpc::Channel> MakeChannel(const std::string& target, const ChannelSecurity& security,
                                           const grpc::ChannelArguments& arguments) {
  if (security.token.empty()) return grpc::CreateCustomChannel(target, security.credentials, arguments);
  std::vector<std::unique_ptr<experimental::ClientInterceptorFactoryInterface>> factories;
  factories.push_back(std::make_unique<TokenInterceptors>(security.token));
  return experimental::CreateCustomChannelWithInterceptors(target, security.credentials, arguments,
                                                           std::move(factories));
}

void AddToken(const std::string& token, grpc::ClientContext* context) {
  if (!token.empty()) context->AddMetadata(kMetadata, Bearer(token));
}

std::string WhyNoConnection(const std::shared_ptr<grpc::Channel>& channel, bool tls) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(1));
  v1::GetServerInfoResponse response;
  const grpc::Status failed = v1::AdminService::NewStub(channel)->GetServerInfo(&context, {}, &response);
  // "...: Ssl handshake failed: SSL_ERROR_SSL: error:0A000086:SSL routines::certificate verify failed"
  const std::string& said = failed.error_message();
  if (absl::EndsWith(said, "onnection refused")) return "the connection was refused";
  const std::string last(absl::StripLeadingAsciiWhitespace(said.substr(said.rfind(':') + 1)));
  if (absl::StrContains(said, "handshake failed")) return absl::StrCat("TLS failed: ", last);
  if (!tls) return "the server hung up; it may take TLS alone, which tls_ca makes it";
  return absl::StrCat("the server ended the connection, as it does where it does not take the client's certificate: ",
                      last);
}

}  // namespace seine::client
