#include "tests/service/access/access_fixture.h"

#include <chrono>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "service/access/credentials.h"

namespace seine::test {

std::string TokenEntry(const std::string& token, const std::string& tenant, const std::string& role) {
  const Digest digest = Sha256(token);
  const std::string hex = absl::BytesToHexString(std::string(digest.begin(), digest.end()));
  return absl::StrCat("- {sha256: ", hex, ", tenant: ", tenant, ", role: ", role, "}\n");
}

CallerStubs::CallerStubs(const std::string& address, std::shared_ptr<grpc::ChannelCredentials> credentials,
                         std::string shown)
    : token(std::move(shown)) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  channel = grpc::CreateCustomChannel(address, std::move(credentials), arguments);
  index = v1::IndexService::NewStub(channel);
  sequence = v1::SequenceService::NewStub(channel);
  retrieval = v1::RetrievalService::NewStub(channel);
  eviction = v1::EvictionService::NewStub(channel);
  admin = v1::AdminService::NewStub(channel);
}

void CallerStubs::Show(grpc::ClientContext* context) const {
  context->set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
  if (!token.empty()) context->AddMetadata("authorization", "Bearer " + token);
}

grpc::Status CallerStubs::Info() const {
  v1::GetServerInfoResponse response;
  return Call(*admin, &v1::AdminService::Stub::GetServerInfo, v1::GetServerInfoRequest(), &response);
}

grpc::Status CallerStubs::CreateIndex(const std::string& name) const {
  v1::CreateIndexRequest request;
  v1::CreateIndexResponse response;
  *request.mutable_spec() = Spec(name, v1::KV_STORE_KEYS_VALUES);
  return Call(*index, &v1::IndexService::Stub::CreateIndex, request, &response);
}

grpc::Status CallerStubs::CreateSequence(const std::string& index_name, const std::string& id,
                                         v1::SequenceHandle* handle) const {
  v1::CreateSequenceRequest request;
  v1::CreateSequenceResponse response;
  request.set_index(index_name);
  request.set_id(id);
  const auto status = Call(*sequence, &v1::SequenceService::Stub::CreateSequence, request, &response);
  *handle = response.handle();
  return status;
}

grpc::Status CallerStubs::Append(const v1::SequenceHandle& handle, int64_t position, int64_t tokens,
                                 uint32_t seed) const {
  v1::AppendRequest request;
  v1::AppendResponse response;
  *request.mutable_item() = Item(handle, 0, position, tokens, seed);
  *request.mutable_item()->mutable_values() = Halves({tokens, kKvHeads, kDim}, seed + 1);
  return Call(*retrieval, &v1::RetrievalService::Stub::Append, request, &response);
}

void AccessTest::SetUp() {
  ReplaceFile(Path("tokens.yaml"), TokenEntry("acme", "acme", "admin") + TokenEntry("acme-writer", "acme", "writer") +
                                       TokenEntry("acme-reader", "acme", "reader") +
                                       TokenEntry("beta", "beta", "admin"));
  ServerOptions options;
  options.listen = "unix:" + Path("seine.sock");
  options.core.threads = 1;
  options.core.workers = 2;
  options.access.tokens_file = Path("tokens.yaml");
  options.access.unix_calls = "token";
  Change(&options);
  auto server = Server::Start(options);
  ASSERT_TRUE(server.ok()) << server.status();
  server_ = *std::move(server);
}

}  // namespace seine::test
