// The programs: seine seq snapshot and restore, and a seined whose sequences outlive it.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/client/process.h"
#include "tests/client/random_model.h"
#include "tests/temp_folder.h"

namespace seine {
namespace {

constexpr char kIndexes[] = R"(indexes:
  - name: m
    geometry: {num_layers: 2, num_q_heads: 4, num_kv_heads: 2, head_dim: 64, dtype: float32}
    zones: {sink: 16, local: 64, update_buffer: 64}
    kv_store: keys_values
)";

class SnapshotProgramTest : public ::testing::Test {
 protected:
  std::unique_ptr<Server> Start() const {
    return std::make_unique<Server>(std::vector<std::string>{"--config", config_, "--snapshots-dir",
                                                             folder_.Path("snapshots"), "--snapshots-at-exit",
                                                             "--snapshots-restore-on-start"});
  }
  static void Fill(client::Client* client, const std::string& id) {
    const RandomModel model(300);
    const auto sequence = client->CreateSequence("m", id);
    ASSERT_TRUE(sequence.ok()) << sequence.status();
    for (int layer = 0; layer < RandomModel::kLayers; ++layer) {
      ASSERT_TRUE(client->Append({*sequence, layer, 0, model.Keys(layer, 0, 300), model.Values(layer, 0, 300)}).ok());
    }
  }
  static Outcome Seine(const Server& server, std::vector<std::string> words) {
    words.insert(words.begin(), {SEINE_PROGRAM, "--server", server.endpoint()});
    return RunProgram(words);
  }

  const TempFolder folder_;
  const std::string config_ = folder_.Write("seined.yaml", kIndexes);
};

TEST_F(SnapshotProgramTest, SequencesOutliveAServerThatEnds) {
  auto server = Start();
  auto client = server->Connect();
  ASSERT_NE(client, nullptr);
  Fill(client.get(), "chat");
  ASSERT_TRUE(client->ForkSequence({"m", "chat", 0}, "branch", 120).ok());
  client = nullptr;
  server = nullptr;  // SIGTERM
  server = Start();
  client = server->Connect();
  ASSERT_NE(client, nullptr);
  const auto chat = client->GetSequence({"m", "chat", 0});
  ASSERT_TRUE(chat.ok()) << chat.status();
  EXPECT_EQ(chat->layer_tokens, (std::vector<int64_t>{300, 300}));
  EXPECT_EQ(client->GetSequence({"m", "branch", 0})->layer_tokens[1], 120);
  const RandomModel model(300);  // what is held is what was appended: a replay is no conflict
  EXPECT_TRUE(client->Append({chat->handle, 0, 0, model.Keys(0, 0, 300), model.Values(0, 0, 300)}).ok());
}

TEST_F(SnapshotProgramTest, CommandsWriteAndRestore) {
  const auto server = Start();
  const auto client = server->Connect();
  ASSERT_NE(client, nullptr);
  Fill(client.get(), "chat");
  const Outcome written = Seine(*server, {"seq", "snapshot", "m", "chat", "monday", "-o", "json"});
  ASSERT_EQ(written.exit_code, 0) << written.err;
  const auto json = nlohmann::json::parse(written.out);
  EXPECT_EQ(json["file"], "monday");
  EXPECT_GT(json["bytes"], 300 * 2 * 2 * 2 * 64 * 4);
  EXPECT_EQ(json["sequences"][0]["id"], "chat");
  const Outcome restored = Seine(*server, {"seq", "restore", "m", "monday", "--id", "again"});
  ASSERT_EQ(restored.exit_code, 0) << restored.err;
  EXPECT_NE(restored.out.find("restored monday"), std::string::npos) << restored.out;
  EXPECT_EQ(client->GetSequence({"m", "again", 0})->layer_tokens[0], 300);
  const Outcome none = Seine(*server, {"seq", "restore", "m", "tuesday"});
  EXPECT_NE(none.exit_code, 0);
  EXPECT_NE(none.err.find("no such snapshot"), std::string::npos) << none.err;
}

}  // namespace
}  // namespace seine
