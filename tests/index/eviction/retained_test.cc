// An engine that keeps keys and values itself follows what the heads retain from reports alone: over thousands of
// random appends, evictions, forks, truncations, replays, failures and lost reports its sets are the index's.
#include <algorithm>
#include <iterator>
#include <limits>
#include <ostream>
#include <random>

#include "tests/index/test_util.h"

namespace seine {
namespace {

using testing::MakeIndex;
using testing::Names;
using testing::Rows;
using testing::SmallConfig;
using testing::TestBackend;
using testing::View;

constexpr int kLayers = 2, kHeads = 2;
using RetainedSets = std::vector<std::vector<int32_t>>;

// The contract of Retained, as an engine would write it.
struct Followed {
  RetainedSets sets = RetainedSets(kHeads);
  int64_t num_tokens = 0, evictions = 0;
  bool behind = false;  // a report was lost, and none has been taken since

  // False: something was missed.
  bool Take(const Retained& report) {
    if (report.counts.size() != kHeads) return false;
    if (report.report == RetainedReport::kKept) {
      sets = report.kept;
    } else {
      if (report.evictions_before != evictions) return false;
      for (int h = 0; h < kHeads; ++h) {
        std::vector<int32_t> all = sets[h];
        for (int64_t p = num_tokens; p < report.num_tokens; ++p) all.push_back(static_cast<int32_t>(p));
        if (!report.dropped.empty()) {
          const auto& gone = report.dropped[h];
          EXPECT_TRUE(std::includes(all.begin(), all.end(), gone.begin(), gone.end()));
          std::vector<int32_t> left;
          std::set_difference(all.begin(), all.end(), gone.begin(), gone.end(), std::back_inserter(left));
          all = left;
        }
        sets[h] = all;
      }
    }
    behind = false;
    num_tokens = report.num_tokens;
    evictions = report.evictions;
    for (int h = 0; h < kHeads; ++h) EXPECT_EQ(report.counts[h], static_cast<int32_t>(sets[h].size()));
    return true;
  }
  void Truncate(int64_t position) {
    num_tokens = std::min(num_tokens, position);
    for (auto& set : sets) set.erase(std::lower_bound(set.begin(), set.end(), position), set.end());
  }
};

struct ReportedBudget {
  std::string name;
  std::string scorer;  // by itself; empty: by call alone
  HeadBudget heads = HeadBudget::kUniform;
};
void PrintTo(const ReportedBudget& given, std::ostream* out) { *out << given.name; }

class RetainedTest : public ::testing::TestWithParam<ReportedBudget> {
 protected:
  struct Engine {
    SequenceHandle handle;
    Followed layers[kLayers];
    std::vector<uint64_t> tokens[kLayers];
  };

  void SetUp() override {
    IndexConfig config = SmallConfig();
    if (!GetParam().scorer.empty()) {
      EvictionConfig& eviction = config.eviction.emplace();
      eviction.scorer.name = GetParam().scorer;
      eviction.budget.tokens = 60;
      eviction.budget.heads = GetParam().heads;
      if (GetParam().heads == HeadBudget::kPyramid) eviction.budget.pyramid_ratio = 3;
      eviction.keep.sinks = 2;
      eviction.interval = 12;
    }
    index_ = MakeIndex(config, &backend_);
  }

  int Pick(int below) { return static_cast<int>(random_() % below); }

  RetainedSets Held(const Engine& engine, int layer) const {
    ScorerConfig knorm;
    knorm.name = "knorm";
    auto scores = index_->Score(engine.handle, layer, knorm, {});
    EXPECT_TRUE(scores.ok()) << scores.status();
    return scores.ok() ? scores->positions : RetainedSets();
  }

  RetainedReport Asked() { return Pick(4) == 0 ? RetainedReport::kKept : RetainedReport::kDropped; }

  // Tells the engine, unless the report is lost on its way; what follows is then noticed, and set right.
  void Tell(Engine* engine, int layer, const Retained& report) {
    Followed& followed = engine->layers[layer];
    const bool was_behind = followed.behind;
    followed.behind = Pick(25) == 0;
    if (followed.behind || followed.Take(report)) return;
    EXPECT_TRUE(was_behind) << "a false alarm";
    ++missed_;
    EvictParams now;
    now.budget.tokens = std::numeric_limits<int32_t>::max();
    now.dry_run = true;
    now.report = RetainedReport::kKept;
    const auto answer = index_->Evict(engine->handle, layer, now, {});
    ASSERT_TRUE(answer.ok()) << answer.status();
    EXPECT_EQ(answer->retained.evictions_before, answer->retained.evictions);
    ASSERT_TRUE(followed.Take(answer->retained));
  }

  void Append(Engine* engine, int layer) {
    std::vector<uint64_t>& tokens = engine->tokens[layer];
    const auto held = static_cast<int64_t>(tokens.size());
    const int64_t back = Pick(5) == 0 ? std::min<int64_t>(held, Pick(20)) : 0;  // a replay, often with more behind it
    const int64_t fresh = back > 0 && Pick(2) == 0 ? 0 : 1 + Pick(Pick(6) == 0 ? 200 : 6);
    std::vector<uint64_t> names(tokens.end() - back, tokens.end());
    for (int64_t i = 0; i < fresh; ++i) names.push_back(++names_);
    const std::string keys = Rows(index_->config().geometry, names);
    const bool fails = Pick(10) == 0;
    if (fails) backend_.fail_operation = Pick(4);
    Retained report;
    const auto length = index_->Append(engine->handle, layer, held - back, View(index_->config().geometry, keys), {},
                                       {}, Asked(), &report);
    backend_.fail_operation = -1;
    if (!length.ok()) {
      ASSERT_TRUE(fails) << length.status();
      return;
    }
    tokens.insert(tokens.end(), names.begin() + back, names.end());
    ASSERT_EQ(report.num_tokens, static_cast<int64_t>(tokens.size()));
    Tell(engine, layer, report);
  }

  void Evict(Engine* engine, int layer) {
    constexpr const char* kScorers[] = {"keydiff", "knorm", "streaming_llm", "manifoldkv"};
    EvictParams params;
    params.scorer.name = kScorers[Pick(4)];
    if (Pick(2) == 0) {
      params.budget.ratio = .3;
    } else {
      params.budget.tokens = 1 + Pick(80);
    }
    if (Pick(2) == 0) params.budget.heads = HeadBudget::kAdaptive;
    params.dry_run = Pick(4) == 0;
    params.report = Asked();
    const bool fails = Pick(10) == 0;
    if (fails) backend_.fail_operation = Pick(4);
    const auto answer = index_->Evict(engine->handle, layer, params, {});
    backend_.fail_operation = -1;
    if (!answer.ok()) {
      ASSERT_TRUE(fails || engine->tokens[layer].empty()) << answer.status();
      return;
    }
    if (params.dry_run) {
      EXPECT_TRUE(answer->retained.dropped.empty());
    } else if (params.report == RetainedReport::kKept) {
      EXPECT_EQ(answer->retained.kept, answer->kept);
    }
    Tell(engine, layer, answer->retained);
  }

  void Compare(const Engine& engine, int layer) {
    if (engine.layers[layer].behind) return;
    ++compared_;
    EXPECT_EQ(engine.layers[layer].sets, Held(engine, layer));
  }

  void Cut(Engine* engine, int64_t position) {
    for (int layer = 0; layer < kLayers; ++layer) {
      engine->layers[layer].Truncate(position);
      auto& tokens = engine->tokens[layer];
      tokens.resize(std::min(tokens.size(), static_cast<size_t>(position)));
    }
  }

  int64_t Longest(const Engine& engine) const {
    return static_cast<int64_t>(std::max(engine.tokens[0].size(), engine.tokens[1].size()));
  }

  TestBackend backend_;
  std::unique_ptr<Index> index_;
  std::mt19937 random_{11};
  uint64_t names_ = 0;
  int64_t missed_ = 0, compared_ = 0;
};

TEST_P(RetainedTest, FollowsFiveThousandSteps) {
  std::vector<Engine> engines(1);
  engines[0].handle = *index_->CreateSequence("");
  for (int step = 0; step < 5000; ++step) {
    const int at = Pick(static_cast<int>(engines.size())), layer = Pick(kLayers), what = Pick(20);
    Engine& engine = engines[at];
    const int64_t longest = Longest(engine);
    if (what < 14) {
      Append(&engine, layer);
    } else if (what < 16) {
      Evict(&engine, layer);
    } else if (what < 18) {
      const int64_t position = std::max<int64_t>(0, longest - Pick(40));
      ASSERT_TRUE(index_->Truncate(engine.handle, position).ok());
      Cut(&engine, position);
    } else if (what == 18 && engines.size() < 6) {
      const int64_t position = Pick(2) == 0 ? longest : std::max<int64_t>(0, longest - Pick(60));
      Engine fork = engine;
      fork.handle = *index_->Fork(engine.handle, "", position);
      Cut(&fork, position);
      engines.push_back(fork);
    } else if (engines.size() > 1) {
      ASSERT_TRUE(index_->DeleteSequence(engine.handle).ok());
      engines.erase(engines.begin() + at);
    }
    for (const Engine& one : engines) Compare(one, layer);
    if (HasFailure()) FAIL() << "in step " << step;
  }
  EXPECT_GT(compared_, 5000);
  EXPECT_GT(missed_, 10);
}

// The same without a loss, one sequence in blocks and steps.
TEST_P(RetainedTest, EqualsTheIndexAfterEveryStep) {
  Engine engine;
  engine.handle = *index_->CreateSequence("");
  for (int step = 0; step < 400; ++step) {
    const int layer = Pick(kLayers);
    const std::vector<uint64_t> names = Names(names_ + 1, 1 + Pick(step % 50 == 0 ? 300 : 5));
    names_ += names.size();
    const std::string keys = Rows(index_->config().geometry, names);
    Retained report;
    const auto held = static_cast<int64_t>(engine.tokens[layer].size());
    ASSERT_TRUE(index_
                    ->Append(engine.handle, layer, held, View(index_->config().geometry, keys), {}, {},
                             RetainedReport::kDropped, &report)
                    .ok());
    engine.tokens[layer].insert(engine.tokens[layer].end(), names.begin(), names.end());
    ASSERT_TRUE(engine.layers[layer].Take(report));
    ASSERT_EQ(engine.layers[layer].sets, Held(engine, layer)) << "after step " << step;
  }
  EXPECT_EQ(index_->stats().evictions > 0, !GetParam().scorer.empty());
}

INSTANTIATE_TEST_SUITE_P(Budgets, RetainedTest,
                         ::testing::Values(ReportedBudget{"by_call", ""}, ReportedBudget{"uniform", "keydiff"},
                                           ReportedBudget{"recent", "streaming_llm"},
                                           ReportedBudget{"adaptive", "knorm", HeadBudget::kAdaptive},
                                           ReportedBudget{"pyramid", "keydiff", HeadBudget::kPyramid}),
                         [](const auto& given) { return given.param.name; });

// A report that is asked for needs a place; one that is not costs the caller nothing, and is empty.
TEST(RetainedReportTest, IsMadeWhereItIsAskedForAlone) {
  TestBackend backend;
  const auto index = MakeIndex(SmallConfig(), &backend);
  const SequenceHandle sequence = *index->CreateSequence("");
  const std::string keys = Rows(index->config().geometry, Names(1, 5));
  const TensorView view = View(index->config().geometry, keys);
  const auto refused = index->Append(sequence, 0, 0, view, {}, {}, RetainedReport::kDropped, nullptr);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(index->GetSequence(sequence)->layer_tokens[0], 0);
  Retained report;
  report.kept = {{1}};
  ASSERT_TRUE(index->Append(sequence, 0, 0, view, {}, {}, RetainedReport::kNone, &report).ok());
  EXPECT_TRUE(report.kept.empty() && report.counts.empty());
  ASSERT_TRUE(index->Append(sequence, 0, 0, view, {}, {}, RetainedReport::kKept, &report).ok());  // a replay
  EXPECT_EQ(report.kept, RetainedSets(2, {0, 1, 2, 3, 4}));
  EXPECT_EQ(report.counts, (std::vector<int32_t>{5, 5}));
}

}  // namespace
}  // namespace seine
