// seine recall: its JSON, its table with the worst head, and what it refuses.
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/client/process.h"
#include "tests/client/random_model.h"

namespace seine {
namespace {

using RecallJson = nlohmann::json;

class RecallCliTest : public testing::Test {
 protected:
  // Sequence s of index m, asked three steps in layer 0 and one in layer 1; t is asked nothing.
  void SetUp() override {
    const auto client = server_.Connect();
    ASSERT_NE(client, nullptr);
    ASSERT_TRUE(client->CreateIndex(RandomModel::Spec("m", v1::KV_STORE_KEYS)).ok());
    const RandomModel model(600);
    for (const char* id : {"s", "t"}) {
      ASSERT_TRUE(client->CreateSequence("m", id).ok());
      for (int layer = 0; layer < 2; ++layer) {
        ASSERT_TRUE(client->AppendStream({{{"m", id, 0}, layer, 0, model.Keys(layer, 0, 600), {}}}).ok());
      }
    }
    for (const int layer : {0, 0, 0, 1}) {
      const client::RetrieveItem item = {{"m", "s", 0}, layer, {model.query.data(), client::DType::kFloat32, {4, 64}}};
      ASSERT_TRUE(client->Retrieve({item}, {}).ok());
    }
  }
  Outcome Seine(const std::string& line) const {
    std::vector<std::string> arguments = {SEINE_PROGRAM};
    for (const absl::string_view word : absl::StrSplit(line, ' ')) arguments.emplace_back(word);
    return server_.Run(arguments);
  }
  RecallJson Told(const std::string& line) const {
    const Outcome outcome = Seine(line + " -o json");
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return RecallJson::parse(outcome.out, nullptr, false);
  }

  Server server_;
};

TEST_F(RecallCliTest, TellsEachHeadAndTheWorst) {
  const RecallJson told = Told("recall m --scope q_head --top-k 20");
  EXPECT_EQ(told["index"], "m");
  EXPECT_TRUE(told["sequence"].is_null());
  EXPECT_EQ(told["compared"], 4);
  EXPECT_EQ(told["dropped"], 0);
  EXPECT_TRUE(told["predicted_recall"].is_null());
  ASSERT_EQ(told["heads"].size(), 4u);
  double sum = 0, sets = 0, least = 1;
  for (size_t i = 0; i < 4; ++i) {
    const RecallJson& head = told["heads"][i];
    EXPECT_EQ(head["layer"], i / 2);
    EXPECT_EQ(head["kv_head"], i % 2);
    EXPECT_EQ(head["sets"], i / 2 == 0 ? 6 : 2);
    sum += head["recall"].get<double>() * head["sets"].get<double>();
    sets += head["sets"].get<double>();
    least = std::min(least, head["recall"].get<double>());
  }
  EXPECT_NEAR(told["recall"].get<double>(), sum / sets, 1e-9);
  EXPECT_EQ(told["worst"]["recall"].get<double>(), least);
  EXPECT_EQ(Told("recall m s --layer 1 --samples 9")["compared"], 1);
  const Outcome table = Seine("recall m");
  EXPECT_EQ(table.exit_code, 0) << table.err;
  EXPECT_TRUE(absl::StrContains(table.out, "4 items compared: recall ")) << table.out;
  EXPECT_TRUE(absl::StrContains(table.out, "worst: layer ")) << table.out;
}

TEST_F(RecallCliTest, RefusesInOneLine) {
  const auto says = [&](const std::string& line, int exit_code, const std::string& part) {
    const Outcome outcome = Seine(line);
    EXPECT_EQ(outcome.exit_code, exit_code) << line << outcome.err;
    EXPECT_EQ(outcome.out, "") << line;
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
    EXPECT_TRUE(absl::StrContains(outcome.err, part)) << line << ": " << outcome.err;
  };
  says("recall m t", 7, "no query of these layers was seen");
  says("recall nowhere", 5, "nowhere");
  says("recall m --samples 0", 2, "--samples");
  says("recall m --top-k 0", 7, "--top-k");
  says("recall m --beta .1 --recall-target .9", 2, "--recall-target");
}

}  // namespace
}  // namespace seine
