// A session with a server that is older than the session: one that knows no soft cap of logits.
#include "engines/llama.cpp/remote/session.h"

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

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
    ++made;
    return grpc::Status::OK;
  }
  grpc::Status DeleteIndex(grpc::ServerContext*, const v1::DeleteIndexRequest*, v1::DeleteIndexResponse*) override {
    ++deleted;
    return grpc::Status::OK;
  }
  int made = 0, deleted = 0;
};

struct Sequences final : v1::SequenceService::Service {
  grpc::Status CreateSequence(grpc::ServerContext*, const v1::CreateSequenceRequest* in,
                              v1::CreateSequenceResponse* out) override {
    out->mutable_handle()->set_index(in->index());
    out->mutable_handle()->set_id("a");
    out->mutable_handle()->set_generation(1);
    return grpc::Status::OK;
  }
};

struct Retrieval final : v1::RetrievalService::Service {
  // As protobuf has it, a field that is not known is passed over.
  grpc::Status Attend(grpc::ServerContext*, const v1::AttendRequest* in, v1::AttendResponse* out) override {
    for (int i = 0; i < in->items_size(); ++i) out->add_answers()->set_path(v1::PATH_DENSE);
    return status;
  }
  grpc::Status status;
};

TEST(Session, AServerThatKnowsNoSoftCapIsRefused) {
  const TempFolder folder;
  const std::string endpoint = "unix://" + folder.Path("seine.sock");
  Admin admin;
  Indexes indexes;
  Sequences sequences;
  Retrieval retrieval;
  grpc::ServerBuilder builder;
  builder.AddListeningPort(endpoint, grpc::InsecureServerCredentials());
  builder.RegisterService(&admin);
  builder.RegisterService(&indexes);
  builder.RegisterService(&sequences);
  builder.RegisterService(&retrieval);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  ASSERT_NE(server, nullptr);

  SessionConfig config;
  config.endpoint = endpoint;
  config.geometry.num_layers = 2;
  config.geometry.num_q_heads = 4, config.geometry.num_kv_heads = 2, config.geometry.head_dim = 64;
  config.geometry.dtype = DType::kFloat16;
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
  session.reset();
  server->Shutdown();
}

}  // namespace
}  // namespace seine::llama
