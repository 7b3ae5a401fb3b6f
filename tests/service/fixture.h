// A server on a Unix socket in a folder of its own, stubs to call it, and requests that are right, for tests to spoil.
#ifndef SEINE_TESTS_SERVICE_FIXTURE_H_
#define SEINE_TESTS_SERVICE_FIXTURE_H_

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "seine/v1/admin_service.grpc.pb.h"
#include "seine/v1/index_service.grpc.pb.h"
#include "seine/v1/retrieval_service.grpc.pb.h"
#include "seine/v1/sequence_service.grpc.pb.h"
#include "service/server.h"

namespace seine::test {

// The geometry of every index here: small, yet with a zone from 200 tokens on.
inline constexpr int kLayers = 2, kQHeads = 4, kKvHeads = 2, kDim = 64;
inline constexpr int kSink = 16, kLocal = 64, kBuffer = 64, kDenseThreshold = 128;

class TempDir {
 public:
  TempDir();
  ~TempDir();
  const std::string path;
};

struct Stubs {
  explicit Stubs(const std::string& address);
  std::shared_ptr<grpc::Channel> channel;
  std::unique_ptr<v1::IndexService::Stub> index;
  std::unique_ptr<v1::SequenceService::Stub> sequence;
  std::unique_ptr<v1::RetrievalService::Stub> retrieval;
  std::unique_ptr<v1::AdminService::Stub> admin;
};

// One unary call: Call(*stubs.index, &v1::IndexService::Stub::GetIndex, request, &response).
template <typename Stub, typename Request, typename Response>
grpc::Status Call(Stub& stub, grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                  const Request& request, Response* response) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
  return (stub.*method)(&context, request, response);
}

v1::IndexSpec Spec(const std::string& name, v1::KvStore store = v1::KV_STORE_KEYS);

// Tensors of finite pseudo-random halves: the same seed, the same bytes.
v1::Tensor Halves(const std::vector<int64_t>& shape, uint32_t seed);
v1::Tensor Positions(const std::vector<int32_t>& positions);
std::vector<int32_t> Ints(const v1::Tensor& tensor);

v1::AppendItem Item(const v1::SequenceHandle& handle, int layer, int64_t position, int64_t tokens, uint32_t seed = 1);
v1::RetrieveItem Query(const v1::SequenceHandle& handle, int layer, uint32_t seed = 7);

// What a failed call says: the field of BadRequest and the reason of ErrorInfo, empty where absent.
struct Details {
  std::string field, reason;
  bool retry = false;
};
Details DetailsOf(const v1::Status& status);
Details DetailsOf(const grpc::Status& status);

// A server in this process. Parameter: whether it polls.
class ServerTest : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override;
  virtual ServerOptions Options() const;

  v1::SequenceHandle NewSequence(const std::string& index, const std::string& id = "");
  grpc::Status Append(const v1::AppendItem& item, int64_t* num_tokens = nullptr);
  // Everything that calls can see of the server: infos, sequences, heads, stored bytes.
  std::string Digest();

  TempDir dir_;
  std::unique_ptr<Server> server_;
  std::unique_ptr<Stubs> stubs_;
};

}  // namespace seine::test

#endif  // SEINE_TESTS_SERVICE_FIXTURE_H_
