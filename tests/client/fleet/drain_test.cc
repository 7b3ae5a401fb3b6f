// seine drain: a server is emptied into others that share its folder of snapshots, and what stays is told.
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "client/fleet/drain.h"
#include "client/fleet/fleet_client.h"
#include "tests/client/process.h"
#include "tests/client/random_model.h"

namespace seine::client {
namespace {

using Json = nlohmann::json;

class DrainTest : public testing::Test {
 protected:
  DrainTest() {
    for (const Server& server : servers_) {
      clients_.push_back(server.Connect());
      EXPECT_TRUE(clients_.back()->CreateIndex(RandomModel::Spec("m", v1::KV_STORE_KEYS_VALUES)).ok());
    }
    Fill("small", 20);
    Fill("large", 300);
    Fill("large/draft", 20);
    Fill("middle", 100);
  }
  Client* source() const { return clients_[0].get(); }
  void Fill(const std::string& id, int64_t tokens) const {
    EXPECT_TRUE(source()->CreateSequence("m", id).ok());
    EXPECT_TRUE(Append(source(), id, 0, tokens).ok());
  }
  absl::Status Append(Client* client, const std::string& id, int64_t begin, int64_t end) const {
    return client
        ->Append({{"m", id, 0}, 0, begin, model_.Keys(0, begin, end - begin), model_.Values(0, begin, end - begin)})
        .status();
  }
  Outcome Drain(std::vector<std::string> words) const {
    words.insert(words.begin(), {SEINE_PROGRAM, "--server", servers_[0].endpoint(), "drain"});
    return RunProgram(words);
  }
  std::string To(int server) const { return "n" + std::to_string(server) + "=" + servers_[server].endpoint(); }
  // The node that has a family, of those that are asked after it.
  int Holder(const std::string& id) const {
    for (int i = 0; i < 3; ++i) {
      if (clients_[i]->GetSequence({"m", id, 0}).ok()) return i;
    }
    return -1;
  }

  const TempFolder folder_;
  const RandomModel model_{300};
  const std::vector<std::string> flags_ = {"--snapshots-dir", folder_.Path("snapshots")};
  Server servers_[3] = {Server(flags_), Server(flags_), Server(flags_)};
  std::vector<std::unique_ptr<Client>> clients_;
};

TEST_F(DrainTest, FamiliesMoveTheLargestFirstAndNoneComes) {
  const Outcome outcome = Drain({"--to", To(1), "--to", To(2), "-o", "json"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const Json json = Json::parse(outcome.out);
  EXPECT_EQ(json["moved"], 3);
  std::vector<std::string> order;
  for (const Json& one : json["families"]) {
    order.push_back(one["family"]);
    EXPECT_EQ(one["outcome"], "moved");
    EXPECT_EQ(one["node"], "n" + std::to_string(Holder(order.back()))) << order.back();
    EXPECT_GT(one["pause_ms"], 0.0);
  }
  EXPECT_EQ(order, (std::vector<std::string>{"large", "middle", "small"}));
  EXPECT_EQ(Holder("large/draft"), Holder("large"));
  EXPECT_FALSE(*source()->IsServing(""));
  EXPECT_TRUE(source()->GetServerInfo()->draining());
  EXPECT_EQ(ReasonOf(source()->CreateSequence("m", "new").status()), "DRAINING");

  const Outcome again = Drain({"--to", To(1)});
  EXPECT_EQ(again.exit_code, 0) << again.err;
  EXPECT_EQ(again.out, "0 moved, 0 snapshotted, 0 stay\n");
  EXPECT_EQ(Drain({"--undo"}).out, "takes new families again\n");
  EXPECT_EQ(Drain({"--undo"}).out, "did not drain\n");
  EXPECT_TRUE(source()->CreateSequence("m", "new").ok());
  EXPECT_TRUE(*source()->IsServing(""));
}

TEST_F(DrainTest, ALineOfJsonTellsOfEachFamilyAndTheLastOfAll) {
  const Outcome outcome = Drain({"--to", To(1), "-o", "json", "--each"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  std::vector<Json> lines;
  for (const absl::string_view line : absl::StrSplit(outcome.out, '\n', absl::SkipEmpty())) {
    lines.push_back(Json::parse(line));
  }
  ASSERT_EQ(lines.size(), 4);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(lines[i]["outcome"], "moved");
    EXPECT_EQ(lines[i]["generation"], 1);
  }
  EXPECT_EQ(lines[3],
            (Json{{"draining", true}, {"moved", 3}, {"moved_whole", 0}, {"snapshotted", 0}, {"stay", 0}, {"lost", 0}}));
}

TEST_F(DrainTest, StopsBetweenFamilies) {
  DrainOptions options;
  options.targets = {{clients_[1].get(), {"n1", servers_[1].endpoint()}}};
  options.bytes_per_second = 1;  // it would wait for hours after the first
  int done = 0;
  options.progress = [&](const DrainedFamily&) { ++done; };
  options.stop = [&] { return done == 1; };
  EXPECT_EQ(client::Drain(source(), options)->size(), 1);
  EXPECT_EQ(Holder("large"), 1);
  EXPECT_EQ(Holder("middle"), 0);
  EXPECT_TRUE(Append(source(), "middle", 100, 120).ok());
}

TEST_F(DrainTest, WhatNoTargetTakesIsSnapshottedAndServesOn) {
  ASSERT_TRUE(clients_[1]->CreateSequence("m", "middle").ok());  // the id is taken there
  const Outcome outcome = Drain({"--to", To(1)});
  EXPECT_EQ(outcome.exit_code, 8) << outcome.err;
  EXPECT_TRUE(absl::StrContains(outcome.out, "m/middle: snapshotted")) << outcome.out;
  EXPECT_TRUE(absl::StrContains(outcome.out, "2 moved, 1 snapshotted, 0 stay\n")) << outcome.out;
  EXPECT_TRUE(Append(source(), "middle", 100, 110).ok());

  ASSERT_TRUE(clients_[1]->DeleteSequence({"m", "middle", 0}).ok());
  const Outcome rest = Drain({"--to", To(1), "-o", "json"});  // goes on
  EXPECT_EQ(rest.exit_code, 0) << rest.err;
  EXPECT_EQ(Json::parse(rest.out)["families"].size(), 1u);
  EXPECT_EQ(clients_[1]->GetSequence({"m", "middle", 0})->layer_tokens[0], 110);
}

TEST_F(DrainTest, ASnapshotHoldsWhatStays) {
  const auto drained = client::Drain(source(), {});
  ASSERT_TRUE(drained.ok()) << drained.status();
  ASSERT_EQ(drained->size(), 3u);
  const DrainedFamily& large = drained->front();
  EXPECT_EQ(large.outcome, DrainOutcome::kSnapshotted);
  ASSERT_EQ(large.files.size(), 2u) << "the draft is no fork";
  for (const std::string& file : large.files) ASSERT_TRUE(clients_[2]->Restore("m", file, "").ok());
  EXPECT_EQ(clients_[2]->GetSequence({"m", "large", 0})->layer_tokens[0], 300);
  EXPECT_EQ(clients_[2]->GetSequence({"m", "large/draft", 0})->layer_tokens[0], 20);
}

TEST_F(DrainTest, FamiliesThatShareTokensStayInOneSnapshot) {
  ASSERT_TRUE(source()->ForkSequence({"m", "middle", 0}, "stranger", std::nullopt).ok());
  const auto drained = client::Drain(source(), {.targets = {{clients_[1].get(), {"n1", servers_[1].endpoint()}}}});
  ASSERT_TRUE(drained.ok()) << drained.status();
  std::vector<std::string> files;
  for (const DrainedFamily& one : *drained) {
    if (one.outcome != DrainOutcome::kSnapshotted) continue;
    EXPECT_TRUE(absl::StrContains(one.why.message(), "shares tokens")) << one.why;
    files.insert(files.end(), one.files.begin(), one.files.end());
  }
  EXPECT_EQ(files.size(), 1u);
  EXPECT_EQ(Holder("stranger"), 0);
  EXPECT_EQ(Holder("large"), 1);
}

TEST_F(DrainTest, WhatIsLostIsToldAndTheDrainGoesOn) {
  std::unique_ptr<Server> again;
  DrainOptions options;
  options.targets = {{clients_[1].get(), {"n1", servers_[1].endpoint()}}};
  options.progress = [&](const DrainedFamily&) {
    if (again != nullptr) return;
    servers_[0].Kill();
    again = std::make_unique<Server>(flags_, servers_[0].endpoint());
    EXPECT_TRUE(again->Connect()->CreateIndex(RandomModel::Spec("m", v1::KV_STORE_KEYS_VALUES)).ok());
    EXPECT_TRUE(again->Connect()->CreateSequence("m", "late").ok());
  };
  const auto drained = client::Drain(source(), options);
  ASSERT_TRUE(drained.ok()) << drained.status();
  std::map<std::string, DrainOutcome> outcomes;
  for (const DrainedFamily& one : *drained) outcomes[one.family.name] = one.outcome;
  EXPECT_EQ(outcomes, (std::map<std::string, DrainOutcome>{{"large", DrainOutcome::kMoved},
                                                           {"middle", DrainOutcome::kLost},
                                                           {"small", DrainOutcome::kLost},
                                                           {"late", DrainOutcome::kMoved}}));
  EXPECT_TRUE(again->Connect()->GetServerInfo()->draining());
  EXPECT_EQ(Holder("large"), 1);
  EXPECT_EQ(Holder("late"), 1);
}

TEST_F(DrainTest, AServerMayDrainFromItsStart) {
  const Server drained({"--draining"});
  const auto client = drained.Connect();
  ASSERT_TRUE(client->CreateIndex(RandomModel::Spec("m", v1::KV_STORE_KEYS)).ok());
  EXPECT_FALSE(*client->IsServing(""));
  EXPECT_TRUE(*client->IsServing("seine.v1.RetrievalService"));
  EXPECT_EQ(ReasonOf(client->CreateSequence("m", "new").status()), "DRAINING");
  EXPECT_TRUE(*SetDraining(client.get(), false)) << "it drained";
  EXPECT_TRUE(client->CreateSequence("m", "new").ok());
}

TEST_F(DrainTest, AServerThatStaysAwayEndsTheDrain) {
  DrainOptions options;
  options.patience = absl::Milliseconds(100);
  bool killed = false;
  options.progress = [&](const DrainedFamily&) {
    if (!std::exchange(killed, true)) servers_[0].Kill();
  };
  EXPECT_TRUE(absl::IsUnavailable(client::Drain(source(), options).status()));
}

TEST_F(DrainTest, WithoutAFolderFamiliesStay) {
  const Server bare;
  const auto client = bare.Connect();
  ASSERT_TRUE(client->CreateIndex(RandomModel::Spec("m", v1::KV_STORE_KEYS_VALUES)).ok());
  ASSERT_TRUE(client->CreateSequence("m", "chat").ok());
  const Outcome outcome = RunProgram({SEINE_PROGRAM, "--server", bare.endpoint(), "drain"});
  EXPECT_EQ(outcome.exit_code, 1) << outcome.err;
  EXPECT_TRUE(absl::StrContains(outcome.out, "m/chat: stays: no target was given; no snapshot was written: "))
      << outcome.out;
  EXPECT_TRUE(absl::StrContains(outcome.err, "families that stay and are in no snapshot: 1")) << outcome.err;
}

TEST_F(DrainTest, TheBoundIsKeptOnAverage) {
  constexpr double kSeconds = 0.5;
  const auto sizes = client::Drain(source(), {});
  ASSERT_TRUE(sizes.ok());
  int64_t bytes = 0;
  for (const DrainedFamily& one : *sizes) bytes += one.file_bytes;
  const absl::Time begin = absl::Now();
  ASSERT_TRUE(client::Drain(source(), {.targets = {}, .bytes_per_second = static_cast<double>(bytes) / kSeconds}).ok());
  EXPECT_GE(absl::Now() - begin, absl::Seconds(0.9 * kSeconds));
}

TEST_F(DrainTest, ATargetThatDrainsOrIsTheServerItselfIsRefusedFirst) {
  ASSERT_FALSE(*SetDraining(clients_[1].get(), true));
  EXPECT_EQ(Drain({"--to", To(1)}).exit_code, 7);
  EXPECT_EQ(Drain({"--to", To(0)}).exit_code, 7);
  EXPECT_EQ(Drain({"--to", "n1="}).exit_code, 2);
  EXPECT_EQ(Drain({"--undo", "--to", To(2)}).exit_code, 2);
  EXPECT_TRUE(source()->CreateSequence("m", "new").ok()) << "nothing has begun";
}

TEST_F(DrainTest, AFleetsClientPassesOverANodeThatDrains) {
  FleetDescription description = {"f", {}};
  for (int i = 0; i < 3; ++i) {
    description.nodes.push_back({.name = "n" + std::to_string(i), .address = servers_[i].endpoint()});
  }
  const auto fleet = FleetClient::Create(description);
  ASSERT_TRUE(SetDraining(source(), true).ok());
  for (int i = 0; i < 8; ++i) {
    const std::string id = "chat-" + std::to_string(i);
    ASSERT_TRUE(fleet->CreateSequence("m", id).ok());
    EXPECT_NE(Holder(id), 0) << id;
  }
  EXPECT_TRUE(fleet->CreateSequence("m", "small/draft").ok());
  EXPECT_EQ(Holder("small/draft"), 0) << "its family is there";
}

}  // namespace
}  // namespace seine::client
