// A family that moves from one server to another by SetFamilyState, Snapshot and Restore, and what its callers are
// told.
#include <gtest/gtest.h>

#include "service/families/sequence_families.h"
#include "tests/service/families/family_node.h"

namespace seine::test {
namespace {

using grpc::StatusCode;

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
  request.clear_address();
  request.add_held("a");
  expect("held");
  request.set_state(v1::FAMILY_STATE_MOVED);
  expect("node");
  request.set_node("n1");
  request.set_address("host:7700");
  request.add_held("");
  expect("held[1]");
  request.set_held(1, "a b");
  expect("held[1]");
  for (size_t i = 1; i < FamilyHome::kMostHeld; ++i) request.add_held("a");
  expect("held");
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
