// Servers with credentials, and calls that show them.
#ifndef SEINE_TESTS_SERVICE_ACCESS_ACCESS_FIXTURE_H_
#define SEINE_TESTS_SERVICE_ACCESS_ACCESS_FIXTURE_H_

#include <memory>
#include <string>

#include "seine/v1/eviction_service.grpc.pb.h"
#include "tests/certificates.h"
#include "tests/service/fixture.h"

namespace seine::test {

// A line of a tokens file.
std::string TokenEntry(const std::string& token, const std::string& tenant, const std::string& role);

// Calls of one server as one caller.
struct CallerStubs {
  // `token` may be empty. The connection is this one's own.
  CallerStubs(const std::string& address, std::shared_ptr<grpc::ChannelCredentials> credentials, std::string shown);

  template <typename Stub, typename Request, typename Response>
  grpc::Status Call(Stub& stub, grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                    const Request& request, Response* response) const {
    grpc::ClientContext context;
    Show(&context);
    return (stub.*method)(&context, request, response);
  }
  void Show(grpc::ClientContext* context) const;

  grpc::Status Info() const;
  grpc::Status CreateIndex(const std::string& name) const;
  grpc::Status CreateSequence(const std::string& index, const std::string& id, v1::SequenceHandle* handle) const;
  grpc::Status Append(const v1::SequenceHandle& handle, int64_t position, int64_t tokens, uint32_t seed) const;

  const std::string token;
  std::shared_ptr<grpc::Channel> channel;
  std::unique_ptr<v1::IndexService::Stub> index;
  std::unique_ptr<v1::SequenceService::Stub> sequence;
  std::unique_ptr<v1::RetrievalService::Stub> retrieval;
  std::unique_ptr<v1::EvictionService::Stub> eviction;
  std::unique_ptr<v1::AdminService::Stub> admin;
};

// A server on a Unix socket whose credentials are the tokens "acme", "acme-writer", "acme-reader" and "beta", the first
// and the last of admins.
class AccessTest : public ::testing::Test {
 protected:
  void SetUp() override;
  virtual void Change(ServerOptions* /*options*/) {}
  std::string Path(const std::string& name) const { return dir_.path + "/" + name; }
  CallerStubs As(const std::string& token) const {
    return CallerStubs(server_->address(), grpc::InsecureChannelCredentials(), token);
  }

  TempDir dir_;
  std::unique_ptr<Server> server_;
};

}  // namespace seine::test

#endif  // SEINE_TESTS_SERVICE_ACCESS_ACCESS_FIXTURE_H_
