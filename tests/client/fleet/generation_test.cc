// A node that hangs or ends while a family moves, and one that comes back: an old copy of the family neither serves nor
// replaces a newer one, and none is lost.
#include <gtest/gtest.h>

#include <thread>

#include "absl/strings/str_cat.h"
#include "client/fleet/ask.h"
#include "client/fleet/families.h"
#include "client/fleet/migration.h"
#include "tests/client/process.h"
#include "tests/client/random_model.h"

namespace seine::client {
namespace {

class GenerationTest : public testing::Test {
 protected:
  GenerationTest() {
    for (auto& server : servers_) {
      server = std::make_unique<Server>(flags_);
      clients_.push_back(server->Connect());
      EXPECT_TRUE(clients_.back()->CreateIndex(RandomModel::Spec("m", v1::KV_STORE_KEYS_VALUES)).ok());
    }
    EXPECT_TRUE(At(0)->CreateSequence("m", "chat").ok());
    EXPECT_TRUE(Append(At(0), 0, 50).ok());
  }
  Client* At(int node) const { return clients_[node].get(); }
  absl::Status Append(Client* client, int64_t begin, int64_t end) const {
    return client
        ->Append({{"m", "chat", 0}, 0, begin, model_.Keys(0, begin, end - begin), model_.Values(0, begin, end - begin)})
        .status();
  }
  absl::Status Move(int from, int to) const {
    return MigrateFamily(At(from), At(to), "m", "chat", {absl::StrCat("n", to), servers_[to]->endpoint()}).status();
  }
  static absl::StatusOr<nlohmann::json> SetState(Client* client, nlohmann::json request) {
    request.update({{"index", "m"}, {"family", "chat"}});
    return Ask(client, "SetFamilyState", request);
  }
  static std::string Freeze(Client* client) {
    return SetState(client, {{"state", "FAMILY_STATE_FROZEN"}})->value("freeze", "");
  }
  static absl::Status GiveUp(Client* client, const std::string& freeze, uint64_t generation) {
    return SetState(client, {{"state", "FAMILY_STATE_MOVED"},
                             {"freeze", freeze},
                             {"node", "n1"},
                             {"address", "h:1"},
                             {"generation", absl::StrCat(generation)}})
        .status();
  }
  static void AwaitCopy(Client* target) {
    while (absl::IsNotFound(target->GetSequence({"m", "chat", 0}).status())) {
    }
  }
  static uint64_t GenerationAt(Client* client) { return ListFamilyStates(client, "m", "chat")->at(0).generation; }

  const TempFolder folder_;
  const RandomModel model_{100};
  const std::vector<std::string> flags_ = {"--snapshots-dir", folder_.Path("snapshots")};
  std::unique_ptr<Server> servers_[3];
  std::vector<std::unique_ptr<Client>> clients_;
};

TEST_F(GenerationTest, EachMoveIsNewerThanWhatBothServersKnow) {
  ASSERT_TRUE(Move(0, 1).ok());
  EXPECT_EQ(GenerationAt(At(0)), 1u);
  EXPECT_EQ(GenerationAt(At(1)), 1u);
  ASSERT_TRUE(Move(1, 2).ok());
  ASSERT_TRUE(Move(2, 0).ok());
  EXPECT_EQ(GenerationAt(At(0)), 3u);
  EXPECT_EQ(GenerationAt(At(1)), 2u) << "where it has heard that it went";
  ASSERT_TRUE(At(0)->DeleteSequence({"m", "chat", 0}).ok());
  EXPECT_TRUE(ListFamilyStates(At(0), "m")->empty());
}

// The old node hangs while it is to give the family up. It acts on that call, and on an append, when it comes back.
TEST_F(GenerationTest, ANodeThatIsDelayedGivesUpAndTakesNoAppend) {
  const std::string freeze = Freeze(At(0));
  ASSERT_TRUE(At(0)->Snapshot({"m", "chat", 0}, "first", SnapshotScope::kFamily).ok());
  ASSERT_TRUE(At(1)->Restore("m", "first", "", 1).ok());
  servers_[0]->Pause();
  absl::Status given;
  std::thread mover([&] { given = GiveUp(At(0), freeze, 1); });
  servers_[0]->Resume();
  mover.join();
  EXPECT_TRUE(given.ok()) << given;
  EXPECT_EQ(ReasonOf(Append(At(0), 50, 60)), "MOVED");

  // The family goes on elsewhere. Who holds the old file brings nothing back.
  ASSERT_TRUE(Append(At(1), 50, 60).ok());
  ASSERT_TRUE(Move(1, 2).ok());
  for (const int old : {0, 1}) {
    const auto restored = At(old)->Restore("m", "first", "", 1);
    EXPECT_EQ(ReasonOf(restored.status()), "STALE_GENERATION") << restored.status();
    EXPECT_EQ(ReasonOf(Append(At(old), 60, 70)), "MOVED");
  }
  EXPECT_EQ(At(2)->GetSequence({"m", "chat", 0})->layer_tokens[0], 60);
}

// The target has the family, and the mover may not have heard of it.
TEST_F(GenerationTest, ASourceThatIsStartedAgainLeavesTheFamilyToTheTarget) {
  absl::Status moved;
  std::thread mover([&] { moved = Move(0, 1); });
  AwaitCopy(At(1));
  servers_[0]->Kill();
  const Server again(flags_, servers_[0]->endpoint());
  EXPECT_NE(again.Connect(), nullptr) << "it takes signals once it serves";
  mover.join();
  ASSERT_TRUE(moved.ok()) << moved;
  EXPECT_EQ(At(1)->GetSequence({"m", "chat", 0})->layer_tokens[0], 50);
  EXPECT_TRUE(Append(At(1), 50, 60).ok());
}

TEST_F(GenerationTest, AMoverOfAnOlderGenerationIsRefused) {
  ASSERT_TRUE(Move(0, 1).ok());
  ASSERT_TRUE(Move(1, 0).ok());  // generation 2
  const auto older = SetState(At(0), {{"state", "FAMILY_STATE_FROZEN"}, {"generation", "1"}});
  EXPECT_EQ(ReasonOf(older.status()), "STALE_GENERATION");
  EXPECT_TRUE(Append(At(0), 50, 60).ok()) << "it is not frozen";
  const std::string freeze = Freeze(At(0));
  EXPECT_EQ(ReasonOf(GiveUp(At(0), freeze, 2)), "STALE_GENERATION");
  EXPECT_TRUE(At(0)->GetSequence({"m", "chat", 0}).ok()) << "nothing was given up";
  EXPECT_TRUE(GiveUp(At(0), freeze, 3).ok());
}

TEST_F(GenerationTest, AFamilyComesBackWithoutANumberAsOneNewer) {
  ASSERT_TRUE(At(0)->Snapshot({"m", "chat", 0}, "kept", SnapshotScope::kFamily).ok());
  ASSERT_TRUE(Move(0, 1).ok());
  ASSERT_TRUE(At(0)->Restore("m", "kept", "").ok());
  EXPECT_EQ(GenerationAt(At(0)), 2u);
}

}  // namespace
}  // namespace seine::client
