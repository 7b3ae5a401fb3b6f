// Fleets: the description, where families go (the table that Python is held to as well), and calls to real servers.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/fleet/fleet_client.h"
#include "client/fleet/placement.h"
#include "profile/io/fleet_file.h"
#include "tests/client/process.h"
#include "tests/client/random_model.h"

namespace seine::client {
namespace {

using Json = nlohmann::json;

Json Golden() {
  std::ifstream file(SEINE_PLACEMENTS);
  return Json::parse(file);
}

TEST(FleetPlacementTest, RanksAsPythonDoes) {
  const Json golden = Golden();
  ASSERT_GE(golden["ranked"].size(), 5u);
  for (const Json& one : golden["ranked"]) {
    const std::string family = one["family"];
    const std::vector<std::string> ranked = RankNodes(family, one["nodes"]);
    EXPECT_EQ(Json(ranked), one["ranked"]) << family;
    for (size_t i = 0; i < ranked.size(); ++i) {
      EXPECT_EQ(absl::StrCat(PlacementScore(family, ranked[i])), one["scores"][i]) << family;
    }
  }
}

TEST(FleetPlacementTest, ChoosesAsPythonDoes) {
  const Json golden = Golden();
  ASSERT_GE(golden["choose"].size(), 5u);
  for (const Json& one : golden["choose"])
    EXPECT_EQ(ChooseNode(one["family"].get<std::string>(), one["loads"]), one["node"]);
}

TEST(FleetPlacementTest, AFamilyIsWhatStandsBeforeTheFirstSlash) {
  EXPECT_EQ(FamilyOf("x"), "x");
  EXPECT_EQ(FamilyOf("x/1/2"), "x");
  EXPECT_EQ(FamilyOf("/x"), "");
}

TEST(FleetDescriptionTest, NamesWhatIsWrong) {
  const auto ends = [](absl::string_view text) { return std::string(ParseFleet(text).status().message()); };
  const std::string head = R"({"fleet": "f", "version": 1, "nodes": )";
  const auto fleet = ParseFleet(head + R"([{"name": "b", "address": "h:1", "generation": 3, "state": "draining"},
                                           {"name": "a", "address": "unix:///tmp/a.sock"}]})");
  ASSERT_TRUE(fleet.ok()) << fleet.status();
  EXPECT_EQ(fleet->nodes[0].name, "a");
  EXPECT_EQ(fleet->nodes[1].generation, 3);
  EXPECT_EQ(fleet->nodes[1].state, NodeState::kDraining);
  EXPECT_TRUE(absl::StartsWith(ends("{"), "fleet: "));
  EXPECT_TRUE(absl::StartsWith(ends(std::string(100000, '[')), "fleet: "));
  EXPECT_TRUE(absl::StartsWith(ends(R"({"fleet": "f", "version": 2})"), "version: "));
  EXPECT_TRUE(absl::StartsWith(ends(head + "[]}"), "nodes: "));
  EXPECT_TRUE(absl::StartsWith(ends(head + R"([{"name": "a"}]})"), "nodes[0].address: "));
  EXPECT_TRUE(absl::StartsWith(ends(head + R"([{"address": "h:1"}]})"), "nodes[0].name: "));
  EXPECT_TRUE(absl::StartsWith(ends(head + R"([{"name": "a", "address": "h:1", "state": "x"}]})"), "nodes[0].state: "));
  EXPECT_TRUE(
      absl::StartsWith(ends(head + R"([{"name": "a", "address": "h:1", "generation": 0}]})"), "nodes[0].generation: "));
  EXPECT_TRUE(absl::StrContains(ends(head + R"([{"name": "a", "address": "h:1"}, {"name": "a", "address": "h:2"}]})"),
                                "same name"));
  EXPECT_TRUE(absl::IsNotFound(ReadFleet("/nowhere/fleet.json").status()));
}

class FleetTest : public testing::Test {
 protected:
  FleetTest() : servers_(3) {
    Json nodes = Json::array();
    for (size_t i = 0; i < servers_.size(); ++i) {
      fleet_.nodes.push_back({.name = absl::StrCat("n", i), .address = servers_[i].endpoint()});
      nodes.push_back({{"name", fleet_.nodes[i].name}, {"address", fleet_.nodes[i].address}});
      const auto client = servers_[i].Connect();
      EXPECT_TRUE(client->CreateIndex(RandomModel::Spec("m", v1::KV_STORE_KEYS)).ok());
    }
    folder_.Write("fleet.json", Json({{"fleet", "f"}, {"version", 1}, {"nodes", nodes}}).dump());
  }
  Outcome Seine(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), SEINE_PROGRAM);
    return RunProgram(arguments, {"SEINE_SERVER=/nowhere/seine.sock"});
  }
  size_t NumberOf(const std::string& node) const { return node[1] - '0'; }

  std::vector<Server> servers_;
  FleetDescription fleet_ = {.fleet = "f", .nodes = {}};
  TempFolder folder_;
};

TEST_F(FleetTest, SequencesAreCreatedAndFoundByTheirFamily) {
  const auto fleet = FleetClient::Create(fleet_);
  std::set<std::string> used;
  for (int i = 0; i < 12; ++i) {
    const std::string id = absl::StrCat("chat-", i);
    ASSERT_TRUE(fleet->CreateSequence("m", id).ok());
    ASSERT_TRUE(fleet->CreateSequence("m", id + "/branch").ok());
    used.insert(*fleet->NodeOf("m", id));
    EXPECT_EQ(*fleet->NodeOf("m", id), RankNodes(id, {"n0", "n1", "n2"})[0]);
    EXPECT_TRUE((*fleet->ClientOf("m", id))->GetSequence({"m", id + "/branch", 0}).ok());
  }
  EXPECT_EQ(used.size(), 3u);
  const auto other = FleetClient::Create(fleet_);
  EXPECT_EQ(*other->NodeOf("m", "chat-5/branch"), *fleet->NodeOf("m", "chat-5"));
  EXPECT_TRUE(absl::IsNotFound(other->NodeOf("m", "never").status()));
  EXPECT_TRUE(absl::IsInvalidArgument(fleet->CreateSequence("m", "").status()));
  EXPECT_EQ(fleet->CreateSequence("m", "chat-5").status().code(), absl::StatusCode::kAlreadyExists);
}

TEST_F(FleetTest, ALostNodeIsPassedOver) {
  const auto fleet = FleetClient::Create(fleet_);
  ASSERT_TRUE(fleet->CreateSequence("m", "chat").ok());
  const std::string lost = *fleet->NodeOf("m", "chat");
  servers_[NumberOf(lost)].Kill();
  fleet->Forget("chat");
  EXPECT_TRUE(absl::IsUnavailable(fleet->NodeOf("m", "chat").status()));  // it may have it
  ASSERT_TRUE(fleet->CreateSequence("m", "chat").ok());
  EXPECT_NE(*fleet->NodeOf("m", "chat"), lost);

  const Outcome status = Seine({"fleet", "status", folder_.Path("fleet.json"), "-o", "json"});
  EXPECT_EQ(status.exit_code, 4) << status.err;
  EXPECT_TRUE(absl::StrContains(status.err, lost)) << status.err;
  const Json nodes = Json::parse(status.out)["nodes"];
  for (const Json& node : nodes) EXPECT_EQ(node["health"], node["name"] == lost ? "unreachable" : "serving");
}

TEST_F(FleetTest, TheCommandLineShowsAndRoutes) {
  const std::string path = folder_.Path("fleet.json");
  ASSERT_EQ(Seine({"--fleet", path, "seq", "create", "m", "chat"}).exit_code, 0);
  const Outcome found = Seine({"--fleet", path, "seq", "get", "m", "chat", "-o", "json"});
  EXPECT_EQ(Json::parse(found.out)["id"], "chat") << found.err;
  const std::string node = RankNodes("chat", {"n0", "n1", "n2"})[0];
  EXPECT_EQ(Seine({"fleet", "rank", path, "chat/2"}).out.substr(0, 8), "chat: " + node);

  const Outcome status = Seine({"fleet", "status", path});
  EXPECT_EQ(status.exit_code, 0) << status.err;
  EXPECT_TRUE(absl::StrContains(status.out, "SEQUENCES")) << status.out;
  const Json json = Json::parse(Seine({"fleet", "status", path, "-o", "json"}).out);
  for (const Json& one : json["nodes"]) {
    EXPECT_EQ(one["sequences"], one["name"] == node ? 1 : 0);
    EXPECT_EQ(one["families"], one["sequences"]);
  }

  const Outcome listed = Seine({"--fleet", path, "seq", "list", "m"});
  EXPECT_EQ(listed.exit_code, 2);
  EXPECT_TRUE(absl::StrContains(listed.err, "names no sequence")) << listed.err;
  EXPECT_NE(Seine({"fleet", "status", folder_.Path("none.json")}).exit_code, 0);
}

}  // namespace
}  // namespace seine::client
