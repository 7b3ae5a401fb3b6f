// Which credential may make which call, over every RPC that the contract has.
#include <google/protobuf/descriptor.h>
#include <grpcpp/impl/codegen/client_unary_call.h>
#include <grpcpp/support/byte_buffer.h>
#include <gtest/gtest.h>

#include <map>

#include "service/access/access.h"
#include "service/transport/rpc_methods.h"
#include "service/under_way/call_counts.h"
#include "tests/service/access/access_fixture.h"

namespace seine::test {
namespace {

using grpc::StatusCode;

TEST(Roles, EveryRpcOfTheContractHasOne) {
  std::map<std::string, Role> roles = {{absl::StrCat(kDecodeService, ".Decode"), kDecodeRole}};
  for (const RpcMethod& method : RpcMethods()) roles[absl::StrCat(method.service, ".", method.name)] = method.role;
  for (const char* name : ServiceNames()) {
    const auto* service = google::protobuf::DescriptorPool::generated_pool()->FindServiceByName(name);
    ASSERT_NE(service, nullptr) << name;
    for (int i = 0; i < service->method_count(); ++i) {
      EXPECT_NE(roles[service->method(i)->full_name()], Role::kNone) << service->method(i)->full_name();
    }
  }
}

TEST(Roles, EveryRpcIsCounted) {
  for (const RpcMethod& method : RpcMethods()) {
    const int number = CallCounts::NumberOf(method.name);
    ASSERT_NE(number, CallCounts::kNone) << method.name;
    EXPECT_EQ(CallCounts::MethodOf(number).service, method.service);
    EXPECT_EQ(CallCounts::MethodOf(number).client_streams, method.pieces) << method.name;
  }
  EXPECT_EQ(CallCounts::size(), static_cast<int>(RpcMethods().size()) + 1);  // and Decode
  EXPECT_TRUE(CallCounts::MethodOf(CallCounts::decode()).server_streams);
}

TEST(Roles, WhatChangesSomethingIsNoReaders) {
  for (const RpcMethod& method : RpcMethods()) {
    if (method.changes) {
      EXPECT_GE(method.role, Role::kWriter) << method.name;
    }
  }
}

class RolesTest : public AccessTest {
 protected:
  // A call of any method with a message that is none: one that is let in is INVALID_ARGUMENT, or ends.
  grpc::Status Send(const std::string& path, const std::string& token) const {
    const CallerStubs stubs = As(token);
    grpc::ClientContext context;
    stubs.Show(&context);
    const grpc::internal::RpcMethod rpc(path.c_str(), grpc::internal::RpcMethod::NORMAL_RPC, stubs.channel);
    const grpc::Slice slice("\xff\xff\xff");
    const grpc::ByteBuffer sent(&slice, 1);
    grpc::ByteBuffer received;
    return grpc::internal::BlockingUnaryCall(stubs.channel.get(), rpc, &context, sent, &received);
  }
};

TEST_F(RolesTest, ACallNeedsACredentialOfItsRole) {
  std::vector<std::pair<std::string, Role>> calls = {{absl::StrCat("/", kDecodeService, "/Decode"), kDecodeRole}};
  for (const RpcMethod& method : RpcMethods()) {
    calls.emplace_back(absl::StrCat("/", method.service, "/", method.name), method.role);
  }
  const std::pair<const char*, Role> callers[] = {
      {"acme-reader", Role::kReader}, {"acme-writer", Role::kWriter}, {"acme", Role::kAdmin}};
  std::string unauthenticated, not_allowed;
  const auto same = [](std::string* text, const grpc::Status& status) {
    if (text->empty()) *text = status.error_message();
    EXPECT_EQ(*text, status.error_message());
  };
  for (const auto& [path, role] : calls) {
    for (const char* nobody : {"", "wrong", "acme-", "ACME"}) {
      const grpc::Status status = Send(path, nobody);
      EXPECT_EQ(status.error_code(), StatusCode::UNAUTHENTICATED) << path;
      same(&unauthenticated, status);
    }
    for (const auto& [token, has] : callers) {
      const grpc::Status status = Send(path, token);
      if (has >= role) {
        EXPECT_EQ(status.error_code(), StatusCode::INVALID_ARGUMENT) << path << " by " << token;
        continue;
      }
      EXPECT_EQ(status.error_code(), StatusCode::PERMISSION_DENIED) << path << " by " << token;
      same(&not_allowed, status);
    }
  }
}

TEST_F(RolesTest, ATenantsAdminDoesNotDrainTheServerOfOthers) {
  v1::SetDrainingRequest request;
  v1::SetDrainingResponse response;
  request.set_draining(true);
  const CallerStubs acme = As("acme");
  const grpc::Status status = acme.Call(*acme.admin, &v1::AdminService::Stub::SetDraining, request, &response);
  EXPECT_EQ(status.error_code(), StatusCode::PERMISSION_DENIED);
  EXPECT_FALSE(server_->core().draining);
}

TEST_F(RolesTest, HealthNeedsNone) {
  const CallerStubs nobody = As("");
  grpc::ClientContext context;
  const grpc::internal::RpcMethod rpc("/grpc.health.v1.Health/Check", grpc::internal::RpcMethod::NORMAL_RPC,
                                      nobody.channel);
  const grpc::Slice nothing;
  const grpc::ByteBuffer sent(&nothing, 1);
  grpc::ByteBuffer received;
  EXPECT_TRUE(grpc::internal::BlockingUnaryCall(nobody.channel.get(), rpc, &context, sent, &received).ok());
}

TEST_F(RolesTest, AReadersStepMayAskButNotAppend) {
  ASSERT_TRUE(As("acme").CreateIndex("x").ok());
  v1::SequenceHandle handle;
  ASSERT_TRUE(As("acme-writer").CreateSequence("x", "s", &handle).ok());
  ASSERT_TRUE(As("acme-writer").Append(handle, 0, 10, 1).ok());
  v1::DecodeRequest step;
  v1::DecodeResponse answer;
  *step.add_appends() = Item(handle, 0, 10, 1);
  *step.mutable_appends(0)->mutable_values() = Halves({1, kKvHeads, kDim}, 2);
  *step.add_items() = Query(handle, 0);
  for (const bool writer : {false, true}) {
    const CallerStubs stubs = As(writer ? "acme-writer" : "acme-reader");
    grpc::ClientContext context;
    stubs.Show(&context);
    const auto stream = stubs.retrieval->Decode(&context);
    ASSERT_TRUE(stream->Write(step) && stream->Read(&answer));
    EXPECT_FALSE(answer.has_status()) << answer.status().message();
    EXPECT_EQ(answer.append_status(0).code(), writer ? 0 : static_cast<int>(StatusCode::PERMISSION_DENIED));
    EXPECT_FALSE(answer.answers(0).has_status());
    stream->WritesDone();
    EXPECT_TRUE(stream->Finish().ok());
  }
}

class OwnersTest : public AccessTest {
  void Change(ServerOptions* options) override {
    options->access.unix_calls = "owner";
    IndexConfig index;
    index.name = "declared";
    index.geometry = {.num_layers = 1, .num_q_heads = 2, .num_kv_heads = 1, .head_dim = 64};
    options->indexes.push_back(index);
  }
};

TEST_F(OwnersTest, OverAUnixSocketItsOwnerIsTheServersOwnTenant) {
  v1::ListIndexesResponse indexes;
  const CallerStubs owner = As("");
  ASSERT_TRUE(owner.Call(*owner.index, &v1::IndexService::Stub::ListIndexes, v1::ListIndexesRequest(), &indexes).ok());
  ASSERT_EQ(indexes.indexes_size(), 1);
  EXPECT_EQ(indexes.indexes(0).spec().name(), "declared");
  const CallerStubs acme = As("acme");
  indexes.Clear();
  ASSERT_TRUE(acme.Call(*acme.index, &v1::IndexService::Stub::ListIndexes, v1::ListIndexesRequest(), &indexes).ok());
  EXPECT_EQ(indexes.indexes_size(), 0);
  EXPECT_EQ(As("wrong").Info().error_code(), StatusCode::UNAUTHENTICATED);
}

// What a stream goes on by is looked at in each step.
TEST_F(RolesTest, ACredentialThatIsTakenBackEndsWhatGoesOnByIt) {
  ASSERT_TRUE(As("acme").CreateIndex("x").ok());
  v1::SequenceHandle handle;
  ASSERT_TRUE(As("acme").CreateSequence("x", "s", &handle).ok());
  const CallerStubs goes = As("acme-reader"), stays = As("acme-writer");
  grpc::ClientContext going, staying;
  goes.Show(&going);
  stays.Show(&staying);
  const auto ends = goes.retrieval->Decode(&going);
  const auto lasts = stays.retrieval->Decode(&staying);
  v1::DecodeRequest step;
  v1::DecodeResponse answer;
  ASSERT_TRUE(ends->Write(step) && ends->Read(&answer));
  EXPECT_FALSE(answer.has_status());
  ReplaceFile(Path("tokens.yaml"), "no list");
  EXPECT_FALSE(server_->core().access->Reload().ok()) << "a bad file takes nothing back";
  ASSERT_TRUE(ends->Write(step) && ends->Read(&answer));
  EXPECT_FALSE(answer.has_status());
  ReplaceFile(Path("tokens.yaml"), TokenEntry("acme-writer", "acme", "writer"));
  ASSERT_TRUE(server_->core().access->Reload().ok());
  ASSERT_TRUE(ends->Write(step) && ends->Read(&answer));
  EXPECT_EQ(answer.status().code(), static_cast<int>(StatusCode::UNAUTHENTICATED));
  ASSERT_TRUE(lasts->Write(step) && lasts->Read(&answer));
  EXPECT_FALSE(answer.has_status());
  EXPECT_EQ(goes.Info().error_code(), StatusCode::UNAUTHENTICATED);
  EXPECT_TRUE(stays.Info().ok());
}

}  // namespace
}  // namespace seine::test
