// A fleet's client and a family that moved to a node which has lost it since, or that is sent from node to node.
#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "client/fleet/ask.h"
#include "client/fleet/drain.h"
#include "client/fleet/fleet_client.h"
#include "client/fleet/migration.h"
#include "client/fleet/placement.h"
#include "tests/client/process.h"
#include "tests/client/random_model.h"

namespace seine::client {
namespace {

constexpr absl::Duration kPatience = absl::Milliseconds(300);

// The family has moved from the node that is its first by rendezvous hashing to the second.
class MovedAndLostTest : public testing::Test {
 protected:
  MovedAndLostTest() {
    for (int i = 0; i < 3; ++i) {
      description_.nodes.push_back({.name = Name(i), .address = servers_[i].endpoint()});
      clients_.push_back(Connect(servers_[i]));
    }
    EXPECT_TRUE(clients_[left_]->CreateSequence("m", "chat").ok());
    const MigrationTarget to = {Name(reached_), servers_[reached_].endpoint()};
    EXPECT_TRUE(MigrateFamily(clients_[left_].get(), clients_[reached_].get(), "m", "chat", to).ok());
  }
  static std::unique_ptr<Client> Connect(const Server& server) {
    std::unique_ptr<Client> client = server.Connect();
    EXPECT_TRUE(client->CreateIndex(RandomModel::Spec("m", v1::KV_STORE_KEYS)).ok());
    return client;
  }
  // The node that it has moved to comes back empty.
  void Restart() {
    servers_[reached_].Kill();
    again_ = std::make_unique<Server>(flags_, servers_[reached_].endpoint());
    clients_[reached_] = Connect(*again_);
  }
  std::unique_ptr<FleetClient> Fleet(absl::Duration patience = kPatience) const {
    return FleetClient::Create(description_, {}, patience);
  }
  static absl::Status Get(FleetClient* fleet) {
    return fleet->Run("m", "chat", [](Client* client) { return client->GetSequence({"m", "chat", 0}).status(); });
  }
  static std::string Name(int i) { return "n" + std::to_string(i); }
  static int Ranked(int i) { return RankNodes("chat", {"n0", "n1", "n2"})[i][1] - '0'; }

  const TempFolder folder_;
  const std::vector<std::string> flags_ = {"--snapshots-dir", folder_.Path("snapshots")};
  const int left_ = Ranked(0), reached_ = Ranked(1), third_ = Ranked(2);
  Server servers_[3] = {Server(flags_), Server(flags_), Server(flags_)};
  std::unique_ptr<Server> again_;
  std::vector<std::unique_ptr<Client>> clients_;
  FleetDescription description_ = {.fleet = "f", .nodes = {}};
};

TEST_F(MovedAndLostTest, ItIsLostAndMadeAnewWhereItHadMoved) {
  const auto fleet = Fleet();
  ASSERT_TRUE(Get(fleet.get()).ok());
  Restart();
  fleet->Forget("chat");
  const absl::Status lost = Get(fleet.get());
  EXPECT_TRUE(absl::IsNotFound(lost)) << lost;
  EXPECT_EQ(ReasonOf(lost), "SEQUENCE_LOST");
  EXPECT_TRUE(absl::StrContains(lost.message(), Name(reached_))) << lost;
  ASSERT_TRUE(fleet->CreateSequence("m", "chat").ok());
  EXPECT_EQ(*fleet->NodeOf("m", "chat"), Name(reached_)) << "the node that it left takes it no more";
  EXPECT_TRUE(Get(Fleet().get()).ok());
}

TEST_F(MovedAndLostTest, AThirdTakesItWhereThatNodeDoesNotServe) {
  servers_[reached_].Kill();
  const auto fleet = Fleet();
  EXPECT_TRUE(absl::IsUnavailable(Get(fleet.get()))) << "it may have it";
  ASSERT_TRUE(fleet->CreateSequence("m", "chat").ok());
  EXPECT_EQ(*fleet->NodeOf("m", "chat"), Name(third_));
}

TEST_F(MovedAndLostTest, AThirdTakesItWhereThatNodeDrains) {
  Restart();
  ASSERT_TRUE(SetDraining(clients_[reached_].get(), true).ok());
  const auto fleet = Fleet();
  ASSERT_TRUE(fleet->CreateSequence("m", "chat").ok());
  EXPECT_EQ(*fleet->NodeOf("m", "chat"), Name(third_));
}

TEST_F(MovedAndLostTest, WhereNoOtherTakesItTheCallerMayTryAgain) {
  servers_[reached_].Kill();
  servers_[third_].Kill();
  const absl::Status refused = Fleet()->CreateSequence("m", "chat").status();
  EXPECT_TRUE(absl::IsUnavailable(refused)) << refused;
  EXPECT_EQ(ReasonOf(refused), "NO_NODE");
}

TEST_F(MovedAndLostTest, ANodeOutsideOfTheFleetIsNamed) {
  std::erase_if(description_.nodes, [&](const FleetNode& node) { return node.name == Name(reached_); });
  const auto fleet = Fleet();
  for (const absl::Status& refused : {Get(fleet.get()), fleet->CreateSequence("m", "chat").status()}) {
    EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
    EXPECT_EQ(ReasonOf(refused), "NOT_IN_FLEET");
    EXPECT_TRUE(absl::StrContains(refused.message(), Name(reached_))) << refused;
  }
}

// For as long as patience says, not for a number of hops; and no caller is told that the family has MOVED.
TEST_F(MovedAndLostTest, WhoIsSentFromNodeToNodeMayTryAgain) {
  const absl::Status moved = clients_[left_]->CreateSequence("m", "chat/new").status();
  ASSERT_EQ(ReasonOf(moved), "MOVED");
  int calls = 0;
  const auto call = [&](Client*) {
    ++calls;
    return moved;
  };
  const absl::Status ended = Fleet()->Run("m", "chat", call);
  EXPECT_TRUE(absl::IsUnavailable(ended)) << ended;
  EXPECT_EQ(ReasonOf(ended), "MOVING");
  EXPECT_GT(calls, 2);
}

TEST_F(MovedAndLostTest, AServerSaysHowLongToWait) {
  ASSERT_TRUE(Ask(clients_[reached_].get(), "SetFamilyState",
                  {{"index", "m"}, {"family", "chat"}, {"state", "FAMILY_STATE_FROZEN"}})
                  .ok());
  const absl::Status moving = clients_[reached_]->CreateSequence("m", "chat/new").status();
  ASSERT_EQ(ReasonOf(moving), "MOVING");
  EXPECT_EQ(RetryDelayOf(moving), absl::Milliseconds(20));
  EXPECT_EQ(RetryDelayOf(clients_[left_]->CreateSequence("m", "chat/new").status()), absl::ZeroDuration());
  int calls = 0;
  const auto call = [&](Client*) {
    ++calls;
    return moving;
  };
  EXPECT_EQ(Fleet(absl::Milliseconds(10))->Run("m", "chat", call), moving);
  EXPECT_EQ(calls, 1) << "there is no time for that";
  EXPECT_EQ(Fleet()->Run("m", "chat", call), moving);
  EXPECT_GT(calls, 3);
}

}  // namespace
}  // namespace seine::client
