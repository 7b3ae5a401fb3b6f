// TlsFiles as gRPC's server credentials. gRPC asks before each handshake whether there is a new configuration; a C++
// class for that is missing in gRPC 1.51, so this one wraps the C interface.
#ifndef SEINE_SERVICE_ACCESS_TLS_CREDENTIALS_H_
#define SEINE_SERVICE_ACCESS_TLS_CREDENTIALS_H_

#include <grpc/grpc.h>
#include <grpc/grpc_security.h>
#include <grpcpp/security/server_credentials.h>

#include <memory>
#include <string>
#include <utility>

#include "service/access/tls_files.h"

namespace seine {

// Belongs to one server, which it outlives.
class TlsCredentials final : public grpc::ServerCredentials {
 public:
  explicit TlsCredentials(std::shared_ptr<TlsFiles> files) : files_(std::move(files)) {
    const auto asked = files_->asks_clients() ? GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY
                                              : GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE;
    credentials_ = grpc_ssl_server_credentials_create_with_options(
        grpc_ssl_server_credentials_create_options_using_config_fetcher(asked, &Fetch, this));
  }
  ~TlsCredentials() override { grpc_server_credentials_release(credentials_); }
  TlsCredentials(const TlsCredentials&) = delete;
  TlsCredentials& operator=(const TlsCredentials&) = delete;

  void SetAuthMetadataProcessor(const std::shared_ptr<grpc::AuthMetadataProcessor>&) override {}

 private:
  int AddPortToServer(const std::string& address, grpc_server* server) override {
    return grpc_server_add_http2_port(server, address.c_str(), credentials_);
  }

  // gRPC calls it under a lock of its own.
  static grpc_ssl_certificate_config_reload_status Fetch(void* self, grpc_ssl_server_certificate_config** config) {
    auto& credentials = *static_cast<TlsCredentials*>(self);
    std::shared_ptr<const TlsFiles::Material> now = credentials.files_->Current();
    if (now == credentials.served_) return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_UNCHANGED;
    const grpc_ssl_pem_key_cert_pair pair = {now->key.c_str(), now->cert.c_str()};
    // gRPC insists on authorities, also where no client is asked for a certificate and so none is checked by them.
    const std::string& authorities = credentials.files_->asks_clients() ? now->client_ca : now->cert;
    *config = grpc_ssl_server_certificate_config_create(authorities.c_str(), &pair, 1);
    credentials.served_ = std::move(now);
    return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_NEW;
  }

  const std::shared_ptr<TlsFiles> files_;
  grpc_server_credentials* credentials_ = nullptr;
  std::shared_ptr<const TlsFiles::Material> served_;  // under gRPC's lock
};

}  // namespace seine

#endif  // SEINE_SERVICE_ACCESS_TLS_CREDENTIALS_H_
