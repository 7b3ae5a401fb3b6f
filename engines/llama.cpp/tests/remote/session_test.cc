// Sessions with a server that is older than they are: one that knows no soft cap of logits.
#include "engines/llama.cpp/remote/session.h"

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "seine/v1/admin_service.grpc.pb.h"
#include "seine/v1/index_service.grpc.pb.h"
#include "seine/v1/retrieval_service.grpc.pb.h"
#include "seine/v1/sequence_service.grpc.pb.h"
#include "tests/temp_folder.h"

extern "C" absl::Status SeineOpenSession(const seine::llama::SessionConfig& config,
                                         std::unique_ptr<seine::llama::Session>* session);

namespace seine::llama {
namespace {

struct Admin final : v1::AdminService::Service {
  grpc::Status GetServerInfo(grpc::ServerContext*, const v1::GetServerInfoRequest*,
                             v1::GetServerInfoResponse* out) override {
    out->set_version("0.0.9");
    out->set_max_message_bytes(1 << 20);
    return grpc::Status::OK;
  }
};

struct Indexes final : v1::IndexService::Service {
  grpc::Status CreateIndex(grpc::ServerContext*, const v1::CreateIndexRequest* in,
                           v1::CreateIndexResponse* out) override {
    *out->mutable_index()->mutable_spec() = in->spec();
    names.insert(in->spec().name());
    ++made;
    return grpc::Status::OK;
  }
  grpc::Status DeleteIndex(grpc::ServerContext*, const v1::DeleteIndexRequest*, v1::DeleteIndexResponse*) override {
    ++deleted;
    return grpc::Status::OK;
  }
  int made = 0, deleted = 0;
  std::set<std::string> names;
};

struct Sequences final : v1::SequenceService::Service {
  grpc::Status CreateSequence(grpc::ServerContext*, const v1::CreateSequenceRequest* in,
                              v1::CreateSequenceResponse* out) override {
    out->mutable_handle()->set_index(in->index());
    out->mutable_handle()->set_id("a");
    out->mutable_handle()->set_generation(1);
    return grpc::Status::OK;
  }
  grpc::Status ListSequences(grpc::ServerContext*, const v1::ListSequencesRequest*,
                             v1::ListSequencesResponse*) override {
    return grpc::Status::OK;
  }
};

struct Retrieval final : v1::RetrievalService::Service {
  // As protobuf has it, a field that is not known is passed over.
  grpc::Status Attend(grpc::ServerContext*, const v1::AttendRequest* in, v1::AttendResponse* out) override {
    for (int i = 0; i < in->items_size(); ++i) out->add_answers()->set_path(v1::SEARCH_MODE_DENSE);
    return status;
  }
  grpc::Status status;
};

class SessionTest : public ::testing::Test {
 protected:
  SessionTest() {
    config.endpoint = "unix://" + folder.Path("seine.sock");
    config.geometry.num_layers = 2;
    config.geometry.num_q_heads = 4, config.geometry.num_kv_heads = 2, config.geometry.head_dim = 64;
    config.geometry.dtype = DType::kFloat16;
    grpc::ServerBuilder builder;
    builder.AddListeningPort(config.endpoint, grpc::InsecureServerCredentials());
    builder.RegisterService(&admin);
    builder.RegisterService(&indexes);
    builder.RegisterService(&sequences);
    builder.RegisterService(&retrieval);
    server = builder.BuildAndStart();
    EXPECT_NE(server, nullptr);
  }
  ~SessionTest() override { server->Shutdown(); }

  const TempFolder folder;
  SessionConfig config;
  Admin admin;
  Indexes indexes;
  Sequences sequences;
  Retrieval retrieval;
  std::unique_ptr<grpc::Server> server;
};

TEST_F(SessionTest, AServerThatKnowsNoSoftCapIsRefused) {
  config.softcap = 30;
  std::unique_ptr<Session> session;
  absl::Status status = SeineOpenSession(config, &session);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_EQ(status.message(), "seined 0.0.9 is too old for a soft cap of logits");
  EXPECT_EQ(session, nullptr);
  EXPECT_EQ(indexes.made, 1);
  EXPECT_EQ(indexes.deleted, 1);
  // One that fails otherwise is not taken to know it.
  retrieval.status = grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "items[0].queries.shape: is wrong");
  EXPECT_EQ(SeineOpenSession(config, &session).code(), absl::StatusCode::kInvalidArgument);
  config.softcap = 0;  // nothing to ask for
  EXPECT_EQ(SeineOpenSession(config, &session), absl::OkStatus());
}

// Layers of both kinds are alike, and as many, in a model of which every other layer slides.
TEST_F(SessionTest, AnIndexThatIsKeptIsOfTheSameLayers) {
  config.index = "chats";
  std::unique_ptr<Session> session;
  for (const std::vector<int>& layers : {std::vector<int>{0, 2}, {1, 3}, {0, 2}, {0, 23}}) {
    config.layers = layers;
    EXPECT_EQ(SeineOpenSession(config, &session), absl::OkStatus());
    session.reset();
  }
  EXPECT_EQ(indexes.made, 4);
  EXPECT_EQ(indexes.names.size(), 3u);
  for (const std::string& name : indexes.names) EXPECT_EQ(name.rfind("chats-", 0), 0u) << name;
  EXPECT_EQ(indexes.deleted, 0);
}

}  // namespace
}  // namespace seine::llama
