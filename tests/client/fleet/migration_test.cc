// seine family list and migrate, between two programs that share a folder of snapshots.
#include <gtest/gtest.h>

#include <atomic>
#include <nlohmann/json.hpp>
#include <thread>

#include "absl/strings/match.h"
#include "absl/time/clock.h"
#include "client/fleet/ask.h"
#include "client/fleet/claim.h"
#include "client/fleet/drain.h"
#include "client/fleet/family_copy.h"
#include "client/fleet/fleet_client.h"
#include "client/fleet/migration.h"
#include "tests/client/process.h"
#include "tests/client/random_model.h"

namespace seine::client {
namespace {

using Json = nlohmann::json;

class MigrationTest : public testing::Test {
 protected:
  MigrationTest() {
    for (const auto& client : {source_.get(), target_.get()}) {
      EXPECT_TRUE(client->CreateIndex(RandomModel::Spec("m", v1::KV_STORE_KEYS_VALUES)).ok());
    }
    Fill("chat");
    EXPECT_TRUE(source_->ForkSequence({"m", "chat", 0}, "chat/draft", 120).ok());
    Fill("chat/apart");  // no fork of the others
    Fill("other");
  }
  absl::Status Append(Client* client, const std::string& id, int64_t begin, int64_t end) const {
    return client
        ->Append({{"m", id, 0}, 0, begin, model_.Keys(0, begin, end - begin), model_.Values(0, begin, end - begin)})
        .status();
  }
  void Fill(const std::string& id) {
    EXPECT_TRUE(source_->CreateSequence("m", id).ok());
    EXPECT_TRUE(Append(source_.get(), id, 0, 200).ok());
  }
  Outcome Seine(std::vector<std::string> words) const {
    words.insert(words.begin(), {SEINE_PROGRAM, "--server", servers_[0].endpoint()});
    return RunProgram(words);
  }
  std::vector<std::string> Migrate(const std::string& family) const {
    return {"family", "migrate", "m", family, "--to", servers_[1].endpoint(), "--name", "n1", "-o", "json"};
  }

  std::unique_ptr<FleetClient> Fleet() const {
    return FleetClient::Create(
        {"f", {{.name = "n0", .address = servers_[0].endpoint()}, {.name = "n1", .address = servers_[1].endpoint()}}});
  }

  const TempFolder folder_;
  const RandomModel model_{300};
  const std::vector<std::string> flags_ = {"--snapshots-dir", folder_.Path("snapshots")};
  Server servers_[2] = {Server(flags_), Server(flags_)};
  std::unique_ptr<Client> source_ = servers_[0].Connect(), target_ = servers_[1].Connect();
};

TEST_F(MigrationTest, AFamilyMovesWithAllThatItHolds) {
  const Outcome outcome = Seine(Migrate("chat"));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const Json json = Json::parse(outcome.out);
  EXPECT_EQ(json["sequences"].size(), 3u);
  EXPECT_EQ(json["files"].size(), 4u);  // of each of two that share nothing: one while it served, one while frozen
  EXPECT_GT(json["bytes"], 200 * 64 * 4);
  EXPECT_GT(json["last_bytes"], 0);
  EXPECT_LT(json["last_bytes"], json["bytes"]);
  EXPECT_EQ(json["whole"], "");
  EXPECT_GT(json["pause_ms"], 0.0);
  EXPECT_EQ(target_->GetSequence({"m", "chat", 0})->layer_tokens[0], 200);
  EXPECT_EQ(target_->GetSequence({"m", "chat/draft", 0})->layer_tokens[0], 120);
  EXPECT_TRUE(Append(target_.get(), "chat", 0, 250).ok());  // the same rows are no conflict, and more may follow
  EXPECT_EQ(ReasonOf(Append(source_.get(), "chat", 200, 250)), "MOVED");
  EXPECT_EQ(ReasonOf(source_->CreateSequence("m", "chat/new").status()), "MOVED");
  EXPECT_TRUE(Append(source_.get(), "other", 200, 250).ok());

  const Json left = Json::parse(Seine({"family", "list", "m", "-o", "json"}).out)["families"];
  ASSERT_EQ(left.size(), 2u);
  EXPECT_EQ(left[0]["state"], "moved");
  EXPECT_EQ(left[0]["node"], "n1");
  EXPECT_EQ(left[0]["generation"], 1);
  EXPECT_EQ(left[0]["sequences"], 0);
  EXPECT_EQ(left[1]["family"], "other");
  EXPECT_EQ(left[1]["state"], "serving");
  EXPECT_EQ(left[1]["generation"], 0);
  EXPECT_EQ(left[1]["tokens"], 250);
}

TEST_F(MigrationTest, AFleetsClientFollowsAndWaits) {
  const auto fleet = Fleet();
  const auto append = [&](int64_t begin, int64_t end) {
    return fleet->Run("m", "chat", [&](Client* client) { return Append(client, "chat", begin, end); });
  };
  ASSERT_TRUE(append(200, 210).ok());
  EXPECT_EQ(*fleet->NodeOf("m", "chat"), "n0");
  std::atomic<bool> moving = true;
  std::thread caller([&] {  // whatever it meets: serving, MOVING or MOVED
    for (int64_t i = 210; moving && i < 300; ++i) EXPECT_TRUE(append(i, i + 1).ok());
  });
  EXPECT_EQ(Seine(Migrate("chat")).exit_code, 0);
  moving = false;
  caller.join();
  EXPECT_TRUE(append(200, 210).ok());  // a replay
  EXPECT_EQ(*fleet->NodeOf("m", "chat"), "n1");
  EXPECT_TRUE(fleet->CreateSequence("m", "chat/new").ok());
  EXPECT_TRUE(target_->GetSequence({"m", "chat/new", 0}).ok());
}

TEST_F(MigrationTest, OfTwoCopiesTheNewestThatTakesChangesCounts) {
  ASSERT_TRUE(source_->Snapshot({"m", "other", 0}, "copy", SnapshotScope::kFamily).ok());
  ASSERT_TRUE(target_->Restore("m", "copy", "", 2).ok());
  const auto found = [&] { return *Fleet()->NodeOf("m", "other"); };
  const auto freeze = [](Client* client) {
    return Ask(client, "SetFamilyState", {{"index", "m"}, {"family", "other"}, {"state", "FAMILY_STATE_FROZEN"}}).ok();
  };
  EXPECT_EQ(found(), "n1");
  ASSERT_TRUE(freeze(target_.get()));
  EXPECT_EQ(found(), "n0");
  ASSERT_TRUE(freeze(source_.get()));
  EXPECT_EQ(found(), "n0");  // which will tell where the family goes
}

// A mover that dies once the source has given the family up: what the target holds waits for whoever is sent on.
class StoppedMoveTest : public MigrationTest {
 protected:
  // Moves "chat" up to there.
  void Stop() {
    FamilyCopy copy(source_.get(), target_.get(), "m", "chat", 1);
    ASSERT_TRUE(copy.CopyAhead().ok());
    const auto freeze = SetState({{"state", "FAMILY_STATE_FROZEN"}});
    ASSERT_TRUE(freeze.ok()) << freeze.status();
    ASSERT_TRUE(copy.Finish(absl::Now() + absl::Seconds(30)).ok());
    ASSERT_EQ(copy.held().size(), 2u) << "of each of two that share nothing";
    EXPECT_TRUE(absl::IsNotFound(target_->GetSequence({"m", "chat", 0}).status())) << "nobody can call it";
    EXPECT_TRUE(source_->GetSequence({"m", "chat", 0}).ok());
    ASSERT_TRUE(SetState({{"state", "FAMILY_STATE_MOVED"},
                          {"freeze", freeze->value("freeze", "")},
                          {"node", "n1"},
                          {"address", servers_[1].endpoint()},
                          {"generation", "1"},
                          {"held", copy.held()}})
                    .ok());
    EXPECT_EQ(ReasonOf(source_->GetSequence({"m", "chat", 0}).status()), "MOVED");
    EXPECT_TRUE(absl::IsNotFound(target_->GetSequence({"m", "chat", 0}).status()));
  }
  absl::StatusOr<Json> SetState(Json request) {
    request.update({{"index", "m"}, {"family", "chat"}});
    return Ask(source_.get(), "SetFamilyState", request);
  }
  FamilyState Left() { return ListFamilyStates(source_.get(), "m", "chat")->at(0); }
  void ExpectThere() {
    EXPECT_EQ(target_->GetSequence({"m", "chat", 0})->layer_tokens[0], 200);
    EXPECT_EQ(target_->GetSequence({"m", "chat/draft", 0})->layer_tokens[0], 120);
    EXPECT_EQ(target_->GetSequence({"m", "chat/apart", 0})->layer_tokens[0], 200);
    EXPECT_TRUE(Append(target_.get(), "chat", 0, 200).ok()) << "the same bytes";
    EXPECT_EQ(ListFamilyStates(target_.get(), "m", "chat")->at(0).generation, 1u);
  }
};

TEST_F(StoppedMoveTest, AFleetsClientBringsItUp) {
  Stop();
  const auto fleet = Fleet();
  const auto append = [&](Client* client) { return Append(client, "chat/apart", 200, 210); };
  const absl::Status appended = fleet->Run("m", "chat/apart", append);
  ASSERT_TRUE(appended.ok()) << appended;
  EXPECT_EQ(*fleet->NodeOf("m", "chat/apart"), "n1");
  EXPECT_EQ(target_->GetSequence({"m", "chat/apart", 0})->layer_tokens[0], 210);
  EXPECT_TRUE(Fleet()->Run("m", "chat", [&](Client* client) { return Append(client, "chat", 200, 210); }).ok());
}

TEST_F(StoppedMoveTest, WhatIsMadeAnewFindsIt) {
  Stop();
  const auto fleet = Fleet();
  EXPECT_TRUE(absl::IsAlreadyExists(fleet->CreateSequence("m", "chat").status()));
  EXPECT_TRUE(fleet->CreateSequence("m", "chat/new").ok());
  ExpectThere();
}

// Another client is between the first part and the second.
TEST_F(StoppedMoveTest, APartThatIsThereDoesNotHideTheOther) {
  Stop();
  FamilyState first = Left();
  first.held.resize(1);
  ASSERT_TRUE(ClaimFamily(target_.get(), "m", first, absl::Now()).ok());
  for (const char* id : {"chat", "chat/apart"}) {
    EXPECT_TRUE(Fleet()->Run("m", id, [&](Client* client) { return Append(client, id, 0, 210); }).ok()) << id;
  }
}

TEST_F(StoppedMoveTest, ManyClientsBringItUpOnce) {
  Stop();
  std::vector<std::thread> clients;
  for (int i = 0; i < 8; ++i) {
    clients.emplace_back([&] {
      const absl::Status appended =
          Fleet()->Run("m", "chat", [&](Client* client) { return Append(client, "chat", 200, 210); });
      EXPECT_TRUE(appended.ok()) << appended;
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(target_->GetSequence({"m", "chat", 0})->layer_tokens[0], 210);
  EXPECT_EQ(target_->ListSequences("m")->size(), 3u);
}

TEST_F(StoppedMoveTest, TheCommandRunAgainEndsTheMove) {
  Stop();
  const Outcome outcome = Seine(Migrate("chat"));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const Json json = Json::parse(outcome.out);
  EXPECT_EQ(json["ended_earlier"], true);
  EXPECT_EQ(json["sequences"].size(), 3u);
  EXPECT_EQ(json["generation"], 1);
  ExpectThere();
  const Outcome words = Seine({"family", "migrate", "m", "chat", "--to", servers_[1].endpoint()});
  EXPECT_TRUE(absl::StrContains(words.out, "ended a move")) << words.out << words.err;
}

TEST_F(StoppedMoveTest, ADrainThatIsRunAgainEndsTheMove) {
  Stop();
  const DrainOptions options = {.targets = {{target_.get(), {"n1", servers_[1].endpoint()}}}};
  const auto drained = Drain(source_.get(), options);
  ASSERT_TRUE(drained.ok()) << drained.status();
  ASSERT_EQ(drained->size(), 2u);
  EXPECT_EQ(drained->at(0).family.name, "chat");
  EXPECT_EQ(drained->at(0).outcome, DrainOutcome::kMoved);
  EXPECT_EQ(drained->at(0).generation, 1u);
  ExpectThere();
  EXPECT_TRUE(Drain(source_.get(), options)->empty()) << "and tells of it once";
}

TEST_F(StoppedMoveTest, WhatTheTargetHasLostIsLost) {
  Stop();
  for (const std::string& name : Left().held) {
    EXPECT_TRUE(Ask(target_.get(), "ReleaseBase", {{"index", "m"}, {"base", name}}).ok());
  }
  const absl::Status lost = Fleet()->Run("m", "chat", [](Client* client) {
    return client->GetSequence({"m", "chat", 0}).status();
  });
  EXPECT_EQ(ReasonOf(lost), "SEQUENCE_LOST") << lost;
  const Outcome outcome = Seine(Migrate("chat"));
  EXPECT_NE(outcome.exit_code, 0);
  EXPECT_TRUE(absl::StrContains(outcome.err, "the target has lost what it held")) << outcome.err;
}

// The target has it back from a third node in a newer generation: the old one's names mean nothing.
TEST_F(StoppedMoveTest, AnOldHomeBringsNothingBack) {
  Stop();
  const FamilyState left = Left();
  ASSERT_TRUE(ClaimFamily(target_.get(), "m", left, absl::Now()).ok());
  ASSERT_TRUE(MigrateFamily(target_.get(), source_.get(), "m", "chat", {"n0", servers_[0].endpoint()}).ok());
  EXPECT_EQ(*Fleet()->NodeOf("m", "chat"), "n0");
  ClaimFamily(target_.get(), "m", left, absl::Now()).IgnoreError();
  EXPECT_EQ(ReasonOf(target_->GetSequence({"m", "chat", 0}).status()), "MOVED");
  EXPECT_TRUE(Append(source_.get(), "chat", 200, 210).ok());
}

TEST_F(MigrationTest, FamiliesOfTwoIndexesAreTwo) {
  ASSERT_TRUE(target_->CreateIndex(RandomModel::Spec("draft", v1::KV_STORE_KEYS_VALUES)).ok());
  ASSERT_TRUE(target_->CreateSequence("draft", "chat").ok());
  const auto fleet = Fleet();
  EXPECT_EQ(*fleet->NodeOf("m", "chat"), "n0");
  EXPECT_EQ(*fleet->NodeOf("draft", "chat"), "n1");
}

TEST_F(MigrationTest, WhatFailsLeavesTheFamilyWhereItWas) {
  ASSERT_TRUE(target_->CreateSequence("m", "chat/draft").ok());  // the id is taken there
  const Outcome outcome = Seine(Migrate("chat"));
  EXPECT_NE(outcome.exit_code, 0);
  EXPECT_TRUE(absl::StrContains(outcome.err, "serves on at the source")) << outcome.err;
  EXPECT_TRUE(Append(source_.get(), "chat", 200, 250).ok());
  EXPECT_TRUE(absl::IsNotFound(target_->GetSequence({"m", "chat", 0}).status()));
  EXPECT_TRUE(absl::IsNotFound(target_->GetSequence({"m", "chat/apart", 0}).status()));
  EXPECT_EQ(target_->GetSequence({"m", "chat/draft", 0})->layer_tokens[0], 0);
}

TEST_F(MigrationTest, AFamilyThatSharesTokensWithAnotherStays) {
  ASSERT_TRUE(source_->ForkSequence({"m", "other", 0}, "stranger", std::nullopt).ok());
  const auto moved = MigrateFamily(source_.get(), target_.get(), "m", "other", {"n1", servers_[1].endpoint()});
  EXPECT_TRUE(absl::IsFailedPrecondition(moved.status())) << moved.status();
  EXPECT_TRUE(Append(source_.get(), "other", 200, 250).ok());
}

TEST_F(MigrationTest, NothingIsFrozenForWhatCannotMove) {
  const MigrationTarget to = {"n1", servers_[1].endpoint()};
  EXPECT_TRUE(absl::IsNotFound(MigrateFamily(source_.get(), target_.get(), "m", "none", to).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(MigrateFamily(source_.get(), source_.get(), "m", "chat", to).status()));
  ASSERT_TRUE(target_->DeleteIndex("m").ok());
  EXPECT_TRUE(absl::IsNotFound(MigrateFamily(source_.get(), target_.get(), "m", "chat", to).status()));
  EXPECT_TRUE(Append(source_.get(), "chat", 200, 250).ok());
}

}  // namespace
}  // namespace seine::client
