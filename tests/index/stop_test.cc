// Calls whose token stops: they end soon, apply nothing, and the index answers afterwards as before.
#include "kernels/stop.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "index/stop_status.h"
#include "tests/index/test_util.h"

namespace seine {
namespace {

using testing::AppendNames;
using testing::MakeIndex;
using testing::Names;
using testing::Probe;
using testing::SameAnswers;
using testing::SmallConfig;
using testing::TestBackend;

TEST(StopTest, TheStatusTellsTheReason) {
  EXPECT_TRUE(StopStatus().ok());
  for (const auto& [reason, code] : {std::pair{StopReason::kCancelled, absl::StatusCode::kCancelled},
                                     std::pair{StopReason::kDeadline, absl::StatusCode::kDeadlineExceeded},
                                     std::pair{StopReason::kShutdown, absl::StatusCode::kUnavailable}}) {
    const StopToken token;
    const StopScope scope(&token);
    EXPECT_TRUE(StopStatus().ok());
    token.Stop(reason);
    EXPECT_EQ(StopStatus().code(), code);
  }
}

// What has stopped before it begins does nothing that matters, whoever's loop it would have run in.
TEST(StopTest, AStoppedCallChangesNothing) {
  TestBackend backend(2);
  IndexConfig config = SmallConfig(KvStore::kKeysValues);
  auto index = MakeIndex(config, &backend);
  const SequenceHandle seq = *index->CreateSequence("s");
  ASSERT_TRUE(AppendNames(index.get(), seq, 0, 0, Names(1, 400)).ok());
  const auto before = Probe(*index, seq, 0);
  const std::vector<float> queries = testing::Queries(config.geometry, 3);
  std::vector<std::pair<const char*, std::function<absl::Status()>>> calls = {
      {"retrieve",
       [&] {
         return index->Retrieve({{seq, 0, queries.data()}}, config.search).status();
       }},
      {"attend",
       [&] {
         return index->Attend({{seq, 0, queries.data()}}, config.search, {}).status();
       }},
      {"append", [&] { return AppendNames(index.get(), seq, 0, 400, Names(401, 200)).status(); }},
  };
  for (const std::string& name : ScorerNames()) {
    if (name == "client" || name == "qfilters") continue;
    calls.emplace_back(name.c_str(), [&index, &seq, &queries, name] {
      ScorerConfig scorer;
      scorer.name = name;
      scorer.query_window = name == "snapkv" ? 1 : scorer.query_window;
      const ScoreGiven given{.queries = queries.data(), .num_queries = 1};
      return index->Score(seq, 0, scorer, given).status();
    });
    calls.emplace_back(name.c_str(), [&index, &seq, &queries, name] {
      EvictParams params;
      params.scorer.name = name;
      params.scorer.query_window = name == "snapkv" ? 1 : params.scorer.query_window;
      params.budget.tokens = 100;
      const ScoreGiven given{.queries = queries.data(), .num_queries = 1};
      return index->Evict(seq, 0, params, given).status();
    });
  }
  calls.emplace_back("diagnose", [&] { return index->Diagnose(seq, 0, DiagnoseParams(), {}).status(); });
  for (const auto& [name, call] : calls) {
    const StopToken token;
    token.Stop();
    const StopScope scope(&token);
    EXPECT_EQ(call().code(), absl::StatusCode::kCancelled) << name;
  }
  EXPECT_EQ(index->GetSequence(seq)->layer_tokens[0], 400);
  EXPECT_TRUE(SameAnswers(Probe(*index, seq, 0), before));
  for (const auto& [name, call] : calls) {
    if (std::string(name) == "append") continue;
    EXPECT_TRUE(call().ok()) << name << ": " << call();
  }
}

}  // namespace
}  // namespace seine
