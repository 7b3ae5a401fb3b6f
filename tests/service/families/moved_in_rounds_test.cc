// A family that moves in rounds through the wire: what is held is seen by nobody, is dropped in time, and arrives once.
#include <gtest/gtest.h>

#include <filesystem>

#include "service/catalog.h"
#include "service/families/sequence_families.h"
#include "service/snapshots/files/snapshot_bases.h"
#include "tests/service/families/family_node.h"

namespace seine::test {
namespace {

using grpc::StatusCode;
using Sequences = v1::SequenceService::Stub;

class MovedInRoundsTest : public ::testing::Test {
 protected:
  MovedInRoundsTest() {
    EXPECT_TRUE(source_.Create("chat").ok());
    for (int layer = 0; layer < kLayers; ++layer) EXPECT_TRUE(source_.Append("chat", 0, 200, layer).ok());
  }
  grpc::Status Write(const std::string& file, const std::string& base, int keep, v1::SnapshotResponse* response) {
    v1::SnapshotRequest request;
    *request.mutable_handle() = Node::Named("chat");
    request.set_file(file);
    request.set_base(base);
    request.set_keep_seconds(keep);
    return source_.CallSequences(&Sequences::Snapshot, request, response);
  }
  grpc::Status Read(const std::string& file, const std::string& base, int hold, v1::RestoreResponse* response) {
    v1::RestoreRequest request;
    request.set_index("a");
    request.set_file(file);
    request.set_generation(1);
    request.set_base(base);
    request.set_hold_seconds(hold);
    return target_.CallSequences(&Sequences::Restore, request, response);
  }
  // Makes what the base holds be there.
  grpc::Status BringUp(const std::string& base, uint64_t generation, v1::RestoreResponse* response) {
    v1::RestoreRequest request;
    request.set_index("a");
    request.set_generation(generation);
    request.set_base(base);
    return target_.CallSequences(&Sequences::Restore, request, response);
  }
  bool Release(Node* node, const std::string& base) {
    v1::ReleaseBaseRequest request;
    v1::ReleaseBaseResponse response;
    request.set_index("a");
    request.set_base(base);
    EXPECT_TRUE(node->CallSequences(&Sequences::ReleaseBase, request, &response).ok());
    return response.released();
  }
  int64_t HeldBytes() { return target_.core().catalog.Find("", "a")->stats().store_bytes; }
  // Writes and holds the first round.
  void Hold() {
    ASSERT_TRUE(Write("first", "", 60, &written_).ok());
    const grpc::Status held = Read("first", "", 60, &held_);
    ASSERT_TRUE(held.ok()) << held.error_message();
    ASSERT_FALSE(written_.base().empty());
    ASSERT_FALSE(held_.base().empty());
  }

  TempDir dir_;
  Node source_{dir_.path, "n0"}, target_{dir_.path, "n1"};
  v1::SnapshotResponse written_;
  v1::RestoreResponse held_;
};

TEST_F(MovedInRoundsTest, WhatCameSinceArrivesOnceHoweverOftenItIsAsked) {
  Hold();
  EXPECT_EQ(held_.sequences(0).handle().generation(), 0u);
  EXPECT_NE(target_.Append("chat", 200, 1).error_code(), StatusCode::OK);
  EXPECT_TRUE(target_.Create("other").ok());
  ASSERT_TRUE(source_.Append("chat", 200, 3).ok());
  v1::SnapshotResponse rest;
  ASSERT_TRUE(Write("rest", written_.base(), 0, &rest).ok());
  v1::RestoreResponse arrived, again;
  const grpc::Status status = Read("rest", held_.base(), 0, &arrived);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(target_.Ask("chat").SerializeAsString(), source_.Ask("chat").SerializeAsString());
  ASSERT_TRUE(Read("rest", held_.base(), 0, &again).ok());
  EXPECT_EQ(again.SerializeAsString(), arrived.SerializeAsString());
  EXPECT_GT(again.sequences(0).handle().generation(), 0u);
  EXPECT_TRUE(target_.Append("chat", 203, 1).ok());
  EXPECT_EQ(Read("first", held_.base(), 0, &again).error_code(), StatusCode::FAILED_PRECONDITION);
  EXPECT_FALSE(Release(&source_, written_.base())) << "the last round has dropped it";
}

TEST_F(MovedInRoundsTest, WhatIsHeldIsBroughtUpOnceHoweverOftenItIsAsked) {
  Hold();
  ASSERT_TRUE(source_.Append("chat", 200, 3).ok());
  v1::SnapshotResponse rest;
  ASSERT_TRUE(Write("rest", written_.base(), 0, &rest).ok());
  v1::RestoreResponse held, held_again, there, again;
  ASSERT_TRUE(Read("rest", held_.base(), 60, &held).ok());
  EXPECT_EQ(held.base(), held_.base());
  ASSERT_TRUE(Read("rest", held_.base(), 60, &held_again).ok());
  EXPECT_EQ(held_again.SerializeAsString(), held.SerializeAsString()) << "whoever gets no answer asks again";
  EXPECT_NE(target_.Append("chat", 203, 1).error_code(), StatusCode::OK);
  target_.SetDraining(true);
  const grpc::Status status = BringUp(held_.base(), 1, &there);
  ASSERT_TRUE(status.ok()) << status.error_message();
  target_.SetDraining(false);
  EXPECT_GT(there.sequences(0).handle().generation(), 0u);
  EXPECT_EQ(there.bytes(), 0);
  EXPECT_EQ(target_.Ask("chat").SerializeAsString(), source_.Ask("chat").SerializeAsString());
  EXPECT_TRUE(target_.Append("chat", 203, 1).ok());
  ASSERT_TRUE(BringUp(held_.base(), 1, &again).ok());
  EXPECT_EQ(again.SerializeAsString(), there.SerializeAsString());
  EXPECT_EQ(target_.core().families.Generation({"", "a", "chat"}), 1u);
  EXPECT_EQ(target_.core().bases.Count().read, 0);
  ASSERT_TRUE(target_.Delete("chat").ok());
  ASSERT_TRUE(BringUp(held_.base(), 1, &again).ok());
  EXPECT_NE(target_.Append("chat", 204, 1).error_code(), StatusCode::OK) << "it was deleted, and stays so";
}

TEST_F(MovedInRoundsTest, WhatIsHeldIsRefusedWithItsReasonAndStays) {
  Hold();
  v1::RestoreResponse there;
  EXPECT_EQ(DetailsOf(BringUp("none", 1, &there)).reason, "BASE_NOT_FOUND");
  const auto brought = [&](v1::RestoreRequest request) {
    request.set_index("a");
    request.set_base(held_.base());
    return target_.CallSequences(&Sequences::Restore, request, &there);
  };
  v1::RestoreRequest named, held;
  named.set_id("copy");
  held.set_hold_seconds(60);
  EXPECT_EQ(DetailsOf(brought(named)).field, "id");
  EXPECT_EQ(DetailsOf(brought(held)).field, "hold_seconds");
  ASSERT_TRUE(target_.Create("chat").ok());
  EXPECT_EQ(BringUp(held_.base(), 1, &there).error_code(), StatusCode::ALREADY_EXISTS);
  ASSERT_TRUE(target_.Delete("chat").ok());
  target_.core().families.Arrive({"", "a", "chat"}, 5);
  EXPECT_EQ(DetailsOf(BringUp(held_.base(), 4, &there)).reason, "STALE_GENERATION");
  ASSERT_TRUE(BringUp(held_.base(), 6, &there).ok());
  EXPECT_TRUE(target_.Append("chat", 200, 1).ok());
}

TEST_F(MovedInRoundsTest, WhatIsReleasedOrOfADeletedIndexHoldsNoMemory) {
  const int64_t before = HeldBytes();
  Hold();
  EXPECT_GT(HeldBytes(), before);
  EXPECT_EQ(target_.core().bases.Count().read, 1);
  EXPECT_EQ(source_.core().bases.Count().written, 1);
  EXPECT_TRUE(Release(&target_, held_.base()));
  EXPECT_FALSE(Release(&target_, held_.base()));
  EXPECT_EQ(HeldBytes(), before);
  const grpc::Status gone = Read("first", held_.base(), 0, &held_);
  EXPECT_EQ(gone.error_code(), StatusCode::NOT_FOUND);
  EXPECT_EQ(DetailsOf(gone).reason, "BASE_NOT_FOUND");
  source_.core().bases.ForgetIndex("", "a");
  EXPECT_EQ(Write("second", written_.base(), 0, &written_).error_code(), StatusCode::NOT_FOUND);
}

TEST_F(MovedInRoundsTest, ABaseServesItsOwnSide) {
  Hold();
  v1::RestoreRequest request;
  request.set_index("a");
  request.set_file("first");
  request.set_base(written_.base());
  v1::RestoreResponse response;
  EXPECT_EQ(source_.CallSequences(&Sequences::Restore, request, &response).error_code(),
            StatusCode::FAILED_PRECONDITION);
  v1::SnapshotResponse rest;
  EXPECT_TRUE(Write("rest", written_.base(), 0, &rest).ok()) << "an error leaves it";
}

using Clock = SnapshotBases::Clock;

KeptBase WrittenOne() {
  KeptBase base;
  base.written = std::make_unique<WrittenBase>();
  return base;
}

KeptBase ReadOne() {
  KeptBase base;
  base.read = std::make_unique<ReadBase>();
  return base;
}

TEST(SnapshotBasesTest, BasesEndByThemselves) {
  Clock::time_point now;
  SnapshotBases bases([&] { return now; }, /*most=*/2);
  const SnapshotBases::Owner owner{"t", "i"};
  const std::string first = *bases.Add(owner, ReadOne(), std::chrono::seconds(10));
  KeptBase taken;
  EXPECT_EQ(bases.Take({"other", "i"}, first, &taken).code(), absl::StatusCode::kNotFound);
  ASSERT_TRUE(bases.Take(owner, first, &taken).ok());
  EXPECT_EQ(bases.Take(owner, first, &taken).code(), absl::StatusCode::kUnavailable) << "in use";
  now += std::chrono::seconds(11);
  bases.DropEnded();
  bases.GiveBack(first, std::move(taken), std::chrono::seconds(10));
  EXPECT_EQ(bases.Count().read, 1);
  now += std::chrono::seconds(10);
  EXPECT_EQ(bases.Take(owner, first, &taken).code(), absl::StatusCode::kNotFound);
  bases.DropEnded();
  EXPECT_EQ(bases.Count().read, 0);
}

TEST(SnapshotBasesTest, TheOneThatWouldEndFirstMakesRoom) {
  SnapshotBases bases(&Clock::now, /*most=*/2);
  const SnapshotBases::Owner owner{"", "i"};
  const std::string longest = *bases.Add(owner, WrittenOne(), std::chrono::seconds(300));
  const std::string shortest = *bases.Add(owner, WrittenOne(), std::chrono::seconds(100));
  ASSERT_TRUE(bases.Add(owner, WrittenOne(), std::chrono::seconds(200)).ok());
  EXPECT_EQ(bases.Count().written, 2);
  EXPECT_FALSE(bases.Drop(owner, shortest));
  EXPECT_TRUE(bases.Drop(owner, longest));
}

// It may be all that there is of a family.
TEST(SnapshotBasesTest, WhatIsHeldMakesNoRoom) {
  SnapshotBases bases(&Clock::now, /*most=*/3);
  const SnapshotBases::Owner owner{"", "i"};
  const std::string held = *bases.Add(owner, ReadOne(), std::chrono::seconds(1));
  const std::string written = *bases.Add(owner, WrittenOne(), std::chrono::seconds(100));
  const std::string used_up = *bases.Add(owner, KeptBase(), std::chrono::seconds(300));
  ASSERT_TRUE(bases.Add(owner, ReadOne(), std::chrono::seconds(100)).ok());
  EXPECT_FALSE(bases.Drop(owner, used_up));
  const std::string third = *bases.Add(owner, ReadOne(), std::chrono::seconds(100));
  EXPECT_FALSE(bases.Drop(owner, written));
  KeptBase taken;
  ASSERT_TRUE(bases.Take(owner, third, &taken).ok());
  EXPECT_EQ(bases.Add(owner, ReadOne(), std::chrono::seconds(100)).status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(bases.Drop(owner, held));
}

TEST(SnapshotBasesTest, WhatIsDroppedWhileACallHasItDoesNotComeBack) {
  SnapshotBases bases;
  const SnapshotBases::Owner owner{"", "i"};
  const std::string name = *bases.Add(owner, ReadOne(), std::chrono::seconds(300));
  KeptBase taken;
  ASSERT_TRUE(bases.Take(owner, name, &taken).ok());
  EXPECT_TRUE(bases.Drop(owner, name));
  bases.GiveBack(name, std::move(taken), {});
  EXPECT_EQ(bases.Count().read, 0);
}

}  // namespace
}  // namespace seine::test
