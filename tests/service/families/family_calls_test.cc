// A family that moves from one server to another by SetFamilyState, Snapshot and Restore, and what its callers are
// told.
#include <gtest/gtest.h>

#include <filesystem>

#include "service/calls/convert/convert.h"
#include "tests/service/fixture.h"

namespace seine::test {
namespace {

using grpc::StatusCode;
using Admin = v1::AdminService::Stub;
using Sequences = v1::SequenceService::Stub;

// A server with an index "a" and a folder of snapshots that others have too.
class Node {
 public:
  Node(const std::string& folder, const std::string& name) {
    ServerOptions options;
    options.listen = "unix:" + folder + "/" + name + ".sock";
    options.core.threads = 1;
    options.core.workers = 2;
    options.snapshots.folder = folder + "/snapshots";
    options.indexes.push_back(*ConfigFrom(Spec("a"), "spec", nullptr));
    server_ = *Server::Start(options);
    stubs_ = std::make_unique<Stubs>(server_->address());
  }

  static v1::SequenceHandle Named(const std::string& id) {
    v1::SequenceHandle handle;
    handle.set_index("a");
    handle.set_id(id);
    return handle;
  }
  grpc::Status Create(const std::string& id) {
    v1::CreateSequenceRequest request;
    v1::CreateSequenceResponse response;
    request.set_index("a");
    request.set_id(id);
    return Call(*stubs_->sequence, &Sequences::CreateSequence, request, &response);
  }
  grpc::Status Append(const std::string& id, int64_t position, int64_t tokens, int layer = 0) {
    v1::AppendRequest request;
    v1::AppendResponse response;
    *request.mutable_item() = Item(Named(id), layer, position, tokens);
    return Call(*stubs_->retrieval, &v1::RetrievalService::Stub::Append, request, &response);
  }
  grpc::Status Fork(const std::string& id, const std::string& fork) {
    v1::ForkSequenceRequest request;
    v1::ForkSequenceResponse response;
    *request.mutable_source() = Named(id);
    request.set_new_id(fork);
    return Call(*stubs_->sequence, &Sequences::ForkSequence, request, &response);
  }
  grpc::Status Truncate(const std::string& id) {
    v1::TruncateSequenceRequest request;
    v1::TruncateSequenceResponse response;
    *request.mutable_handle() = Named(id);
    request.set_position(10);
    return Call(*stubs_->sequence, &Sequences::TruncateSequence, request, &response);
  }
  grpc::Status Delete(const std::string& id) {
    v1::DeleteSequenceRequest request;
    v1::DeleteSequenceResponse response;
    *request.mutable_handle() = Named(id);
    return Call(*stubs_->sequence, &Sequences::DeleteSequence, request, &response);
  }
  // What a query finds, without the time; or, where it fails, the item's status.
  v1::RetrieveAnswer Ask(const std::string& id) {
    v1::RetrieveRequest request;
    v1::RetrieveResponse response;
    *request.add_items() = Query(Named(id), 0);
    request.mutable_selector()->set_with_scores(true);
    EXPECT_TRUE(Call(*stubs_->retrieval, &v1::RetrievalService::Stub::Retrieve, request, &response).ok());
    return response.answers_size() == 1 ? response.answers(0) : v1::RetrieveAnswer();
  }
  grpc::Status Snapshot(const std::string& id, const std::string& file) {
    v1::SnapshotRequest request;
    v1::SnapshotResponse response;
    *request.mutable_handle() = Named(id);
    request.set_file(file);
    return Call(*stubs_->sequence, &Sequences::Snapshot, request, &response);
  }
  grpc::Status Restore(const std::string& file) {
    v1::RestoreRequest request;
    v1::RestoreResponse response;
    request.set_index("a");
    request.set_file(file);
    return Call(*stubs_->sequence, &Sequences::Restore, request, &response);
  }
  grpc::Status Set(v1::SetFamilyStateRequest request, v1::SetFamilyStateResponse* response) {
    request.set_index("a");
    request.set_family("chat");
    return Call(*stubs_->admin, &Admin::SetFamilyState, request, response);
  }
  std::string Freeze(int64_t sequences) {
    v1::SetFamilyStateRequest request;
    v1::SetFamilyStateResponse response;
    request.set_state(v1::FAMILY_STATE_FROZEN);
    const grpc::Status status = Set(request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(response.sequences(), sequences);
    return response.freeze();
  }
  bool SetDraining(bool draining) {
    v1::SetDrainingRequest request;
    v1::SetDrainingResponse response;
    request.set_draining(draining);
    EXPECT_TRUE(Call(*stubs_->admin, &Admin::SetDraining, request, &response).ok());
    return response.was_draining();
  }
  grpc::Status Thaw(const std::string& freeze) {
    v1::SetFamilyStateRequest request;
    v1::SetFamilyStateResponse response;
    request.set_state(v1::FAMILY_STATE_SERVING);
    request.set_freeze(freeze);
    return Set(request, &response);
  }
  grpc::Status GiveUp(const std::string& freeze) {
    v1::SetFamilyStateRequest request;
    v1::SetFamilyStateResponse response;
    request.set_state(v1::FAMILY_STATE_MOVED);
    request.set_freeze(freeze);
    request.set_node("n1");
    request.set_address("host:7700");
    request.set_generation(4);
    return Set(request, &response);
  }

 private:
  std::unique_ptr<Server> server_;
  std::unique_ptr<Stubs> stubs_;
};

void ExpectMoved(const grpc::Status& status) {
  EXPECT_EQ(status.error_code(), StatusCode::FAILED_PRECONDITION);
  v1::Status details;
  v1::ErrorInfo info;
  ASSERT_TRUE(details.ParseFromString(status.error_details()));
  ASSERT_EQ(details.details_size(), 1);
  ASSERT_TRUE(info.ParseFromString(details.details(0).value()));
  EXPECT_EQ(info.reason(), "MOVED");
  EXPECT_EQ(info.metadata().at("node"), "n1");
  EXPECT_EQ(info.metadata().at("address"), "host:7700");
  EXPECT_EQ(info.metadata().at("generation"), "4");
}

void ExpectMoving(const grpc::Status& status) {
  EXPECT_EQ(status.error_code(), StatusCode::UNAVAILABLE);
  EXPECT_EQ(DetailsOf(status).reason, "MOVING");
  EXPECT_TRUE(DetailsOf(status).retry);
}

class FamilyCallsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const char* id : {"chat", "chat-7"}) {
      ASSERT_TRUE(source_.Create(id).ok());
      for (int layer = 0; layer < kLayers; ++layer) ASSERT_TRUE(source_.Append(id, 0, 200, layer).ok());
    }
    ASSERT_TRUE(source_.Fork("chat", "chat/draft").ok());
  }
  // What any call on the family gets that would change it.
  void ExpectNoChange(void (*expect)(const grpc::Status&)) {
    expect(source_.Append("chat", 200, 1));
    expect(source_.Append("chat/draft", 200, 1));
    expect(source_.Create("chat/new"));
    expect(source_.Fork("chat-7", "chat/new"));
    expect(source_.Truncate("chat"));
    expect(source_.Delete("chat"));
  }

  TempDir dir_;
  Node source_{dir_.path, "n0"}, target_{dir_.path, "n1"};
};

TEST_F(FamilyCallsTest, AFrozenFamilyIsReadAndNotChanged) {
  const std::string before = source_.Ask("chat").SerializeAsString();
  const std::string freeze = source_.Freeze(2);
  ExpectNoChange(&ExpectMoving);
  EXPECT_EQ(source_.Ask("chat").SerializeAsString(), before);
  EXPECT_TRUE(source_.Append("chat-7", 200, 1).ok()) << "a family of its own";
  EXPECT_EQ(DetailsOf(source_.Thaw("another")).field, "freeze");
  ASSERT_TRUE(source_.Thaw(freeze).ok());
  EXPECT_TRUE(source_.Append("chat", 200, 1).ok());
}

TEST_F(FamilyCallsTest, AFamilyMovesWithTheSameAnswersAndComesBack) {
  const std::string freeze = source_.Freeze(2);
  const std::string before = source_.Ask("chat/draft").SerializeAsString();
  ASSERT_TRUE(source_.Snapshot("chat", "move").ok());
  ASSERT_TRUE(target_.Restore("move").ok());
  ASSERT_TRUE(source_.GiveUp(freeze).ok());
  ExpectNoChange(&ExpectMoved);
  EXPECT_EQ(DetailsOf(source_.Ask("chat").status()).reason, "MOVED");
  EXPECT_TRUE(source_.Append("chat-7", 200, 1).ok()) << "a family of its own";
  EXPECT_EQ(target_.Ask("chat/draft").SerializeAsString(), before);
  ASSERT_TRUE(target_.Append("chat", 200, 1).ok());
  ExpectMoved(source_.GiveUp(freeze));  // again

  const std::string back = target_.Freeze(2);
  ASSERT_TRUE(target_.Snapshot("chat", "back").ok());
  ASSERT_TRUE(source_.Restore("back").ok());
  ASSERT_TRUE(target_.GiveUp(back).ok());
  EXPECT_EQ(source_.Ask("chat/draft").SerializeAsString(), before);
  EXPECT_TRUE(source_.Append("chat", 201, 1).ok());
}

// Whoever moves a family and is late gives nothing up: the family has changed since.
TEST_F(FamilyCallsTest, ALateMoverGivesNothingUp) {
  const std::string late = source_.Freeze(2);
  ASSERT_TRUE(source_.Snapshot("chat", "late").ok());
  ASSERT_TRUE(source_.Thaw(late).ok());
  EXPECT_EQ(source_.GiveUp(late).error_code(), StatusCode::FAILED_PRECONDITION);
  ASSERT_TRUE(source_.Append("chat", 200, 1).ok());
  const std::string next = source_.Freeze(2);
  EXPECT_EQ(DetailsOf(source_.GiveUp(late)).field, "freeze");
  ASSERT_TRUE(source_.Thaw(next).ok());
  EXPECT_TRUE(source_.Append("chat", 201, 1).ok());
}

TEST_F(FamilyCallsTest, FieldsThatMeanNothingAreRefused) {
  v1::SetFamilyStateRequest request;
  v1::SetFamilyStateResponse response;
  const auto expect = [&](const std::string& field, StatusCode code = StatusCode::INVALID_ARGUMENT) {
    const grpc::Status status = source_.Set(request, &response);
    EXPECT_EQ(status.error_code(), code) << field;
    EXPECT_EQ(DetailsOf(status).field, field);
  };
  expect("state");
  request.set_state(v1::FAMILY_STATE_SERVING);
  expect("family", StatusCode::FAILED_PRECONDITION);  // it is not frozen
  request.set_seconds(1);
  expect("seconds");
  request.set_state(v1::FAMILY_STATE_FROZEN);
  request.set_freeze("x");
  expect("freeze");
  request.clear_freeze();
  request.set_address("host:7700");
  expect("address");
  request.set_state(v1::FAMILY_STATE_MOVED);
  expect("node");
  EXPECT_TRUE(source_.Append("chat", 200, 1).ok());
}

void ExpectDraining(const grpc::Status& status) {
  EXPECT_EQ(status.error_code(), StatusCode::UNAVAILABLE);
  EXPECT_EQ(DetailsOf(status).reason, "DRAINING");
  EXPECT_TRUE(DetailsOf(status).retry);
}

TEST_F(FamilyCallsTest, AServerThatDrainsServesWhatItHasAndTakesNoNewFamilies) {
  ASSERT_TRUE(source_.Snapshot("chat", "kept").ok());
  EXPECT_FALSE(source_.SetDraining(true));
  EXPECT_TRUE(source_.SetDraining(true)) << "again";
  for (const char* id : {"", "new", "cha", "chat-70"}) ExpectDraining(source_.Create(id));
  ExpectDraining(source_.Restore("kept"));
  EXPECT_TRUE(source_.Append("chat", 200, 1).ok());
  EXPECT_TRUE(source_.Create("chat/new").ok()) << "of a family that is here";
  EXPECT_TRUE(source_.Fork("chat", "chat/fork").ok());
  ASSERT_TRUE(source_.Delete("chat-7").ok());
  ExpectDraining(source_.Create("chat-7"));
  EXPECT_TRUE(source_.SetDraining(false));
  EXPECT_TRUE(source_.Create("new").ok());
}

}  // namespace
}  // namespace seine::test
