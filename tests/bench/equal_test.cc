// Comparisons at equal numbers of candidates: Quest's bound against its definition, who is given how many, and the
// paper's shares by length.
#include "bench/measures/equal.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <random>
#include <set>

#include "bench/methods/paper_schedule.h"
#include "bench/methods/quest_pages.h"
#include "tests/bench/test_util.h"

namespace seine::bench {
namespace {

std::vector<float> Normals(size_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> out(count);
  for (float& v : out) v = normal(random);
  return out;
}

// Quest, section 3.3, coordinate by coordinate in double: the larger of q_j min_j and q_j max_j, summed.
double BoundOf(const std::vector<float>& keys, int dim, int64_t first, int64_t count, const float* query) {
  double bound = 0;
  for (int j = 0; j < dim; ++j) {
    double largest = -std::numeric_limits<double>::infinity();
    double least = std::numeric_limits<double>::infinity(), most = -least;
    for (int64_t i = first; i < first + count; ++i) {
      least = std::min<double>(least, keys[i * dim + j]);
      most = std::max<double>(most, keys[i * dim + j]);
    }
    largest = std::max({largest, query[j] * least, query[j] * most});
    bound += largest;
  }
  return bound;
}

TEST(QuestPagesTest, BoundsAreTheDefinitionAndHoldForEveryKey) {
  for (const auto& [dim, page, pages] : {std::tuple(64, 16, 12), std::tuple(80, 32, 5), std::tuple(128, 16, 1)}) {
    SCOPED_TRACE(dim);
    const std::vector<float> keys = Normals(static_cast<size_t>(dim) * page * pages, dim),
                             queries = Normals(4 * dim, 9);
    QuestPages quest(dim, page);
    const int64_t half = pages / 2 * page;  // in two calls, as a zone grows
    quest.Add(keys.data(), half);
    quest.Add(keys.data() + half * dim, page * pages - half);
    ASSERT_EQ(quest.num_pages(), pages);
    EXPECT_EQ(quest.BytesPerKey(), 4. * dim / page);
    for (int q = 0; q < 4; ++q) {
      const float* query = &queries[static_cast<size_t>(q) * dim];
      const std::vector<float> bounds = quest.Bounds(query);
      for (int p = 0; p < pages; ++p) {
        EXPECT_NEAR(bounds[p], BoundOf(keys, dim, int64_t{p} * page, page, query), 1e-3);
        for (int i = p * page; i < (p + 1) * page; ++i) {
          EXPECT_LE(Dot(query, &keys[static_cast<size_t>(i) * dim], dim), bounds[p] + 1e-3);
        }
      }
    }
  }
}

// Keys that grow from page to page in one coordinate: a query along it wants the last pages, one against it the first.
TEST(QuestPagesTest, PagesUntilAsManyKeys) {
  constexpr int kDim = 16, kPage = 16, kPages = 8;
  std::vector<float> keys(static_cast<size_t>(kDim) * kPage * kPages);
  for (int i = 0; i < kPage * kPages; ++i) keys[static_cast<size_t>(i) * kDim + 3] = static_cast<float>(i);
  QuestPages quest(kDim, kPage);
  quest.Add(keys.data(), kPage * kPages);
  std::vector<float> query(kDim);
  query[3] = 1;
  const auto range = [](int64_t begin, int64_t end) {
    std::vector<int64_t> out;
    for (int64_t i = begin; i < end; ++i) out.push_back(i);
    return out;
  };
  EXPECT_EQ(quest.Choose(query.data(), 32, /*cut=*/true), range(96, 128));
  EXPECT_EQ(quest.Choose(query.data(), 17, /*cut=*/false), range(96, 128));
  std::vector<int64_t> cut = range(96, 97);  // the second page's first key
  const std::vector<int64_t> last = range(112, 128);
  cut.insert(cut.end(), last.begin(), last.end());
  EXPECT_EQ(quest.Choose(query.data(), 17, /*cut=*/true), cut);
  query[3] = -1;
  EXPECT_EQ(quest.Choose(query.data(), 5, /*cut=*/true), range(0, 5));
  EXPECT_EQ(quest.Choose(query.data(), 1000, /*cut=*/true), range(0, 128));
  query[3] = 0;  // all bounds are equal
  EXPECT_EQ(quest.Choose(query.data(), 16, /*cut=*/true), range(0, 16));
}

TEST(PaperScheduleTest, SharesByTheLengthOfTheZone) {
  const auto is = [](int64_t keys, double beta, double rho) {
    const PaperShares shares = PaperSchedule(keys);
    EXPECT_EQ(shares.beta, beta) << keys;
    EXPECT_EQ(shares.rho, rho) << keys;
    EXPECT_GE(shares.rho, shares.beta);
  };
  is(0, .5, .5);
  is(4'999, .5, .5);
  is(5'000, .25, .3);
  is(9'999, .25, .3);
  is(10'000, .2, .25);
  is(29'999, .2, .25);
  is(30'000, .1, .2);
  is(1'000'000, .1, .2);
  EXPECT_EQ(PaperRho(.02), .2);
  EXPECT_EQ(PaperRho(.25), .25);
}

// Notes how many candidates it was asked for, and finds that many.
class CountingMethod final : public Method {
 public:
  explicit CountingMethod(std::vector<Line> lines) : lines_(std::move(lines)) {}
  const std::vector<Line>& lines() const override { return lines_; }
  absl::Status Build(const Head& head) override {
    head_ = &head;
    return absl::OkStatus();
  }
  absl::Status Search(const Line& line, const Ask& ask, bool, Found* found) override {
    found->candidates.clear();
    const int64_t count = line.candidates > 0 ? line.candidates : 3;
    for (int64_t i = 0; i < count; ++i) found->candidates.push_back(static_cast<int32_t>(head_->zone_begin + i));
    found->positions = {ask.top.front(), ask.top.back()};
    return absl::OkStatus();
  }
  void Release() override {}
  double BytesPerKey(const Line&) const override { return 5; }
  double ScanBytesPerKey(const Line&) const override { return 4; }
  double BytesRead(const Line&, int64_t num_keys, const Found& found) const override {
    return 4. * static_cast<double>(num_keys) + static_cast<double>(found.candidates.size());
  }

 private:
  std::vector<Line> lines_;
  const Head* head_ = nullptr;
};

Line LineOf(const std::string& name, int64_t candidates) {
  Line line;
  line.name = name;
  line.candidates = candidates;
  return line;
}

TruthOptions TruthOf(const DatasetInfo& info, int top_k) {
  TruthOptions truth;
  truth.head_dim = info.head_dim;
  truth.top_k = top_k;
  truth.softmax_scale = 1 / std::sqrt(static_cast<float>(info.head_dim));
  return truth;
}

std::unique_ptr<Dataset> MadeUp(int64_t num_keys, int head_dim) {
  DatasetOptions o;
  o.synthetic = "anisotropic";
  o.num_keys = num_keys;
  o.head_dim = head_dim;
  o.num_queries = 8;
  o.own_queries = true;
  auto dataset = Dataset::Open(o);
  EXPECT_TRUE(dataset.ok()) << dataset.status();
  return *std::move(dataset);
}

TEST(EqualTest, RowsStandSideBySideByNumber) {
  const auto dataset = MadeUp(256, 64);
  std::vector<std::unique_ptr<Method>> methods;
  methods.push_back(std::make_unique<CountingMethod>(std::vector<Line>{LineOf("a", 40), LineOf("a", 10)}));
  methods.push_back(std::make_unique<CountingMethod>(std::vector<Line>{LineOf("own", 0)}));
  methods.push_back(std::make_unique<CountingMethod>(std::vector<Line>{LineOf("b", 40), LineOf("b", 10)}));
  const auto rows = MeasureEqual(*dataset, TruthOf(dataset->info(), 20), methods);
  ASSERT_TRUE(rows.ok()) << rows.status();
  std::vector<std::pair<std::string, double>> seen;
  for (const EqualRow& row : *rows) seen.emplace_back(row.name, row.candidates);
  EXPECT_EQ(seen,
            (std::vector<std::pair<std::string, double>>{{"a", 40}, {"b", 40}, {"a", 10}, {"b", 10}, {"own", 3}}));
  EXPECT_DOUBLE_EQ(rows->front().recall_at_k, 2. / 20);
  EXPECT_EQ(rows->front().tokens_attended, 2);
  EXPECT_EQ(rows->front().bytes_read, 4. * 256 + 40);
  EXPECT_EQ(rows->front().num_queries, 8);
}

// Every method of the program has exactly as many as asked, on synthetic keys and on the trace, fewer than top_k too.
TEST(EqualTest, EveryMethodHasExactlyAsMany) {
  const std::string trace = std::string("recall --layers 15 --num-queries 4 --trace ") + SEINE_TRACE;
  const std::pair<std::string, std::set<int>> runs[] = {
      {"recall --synthetic rope --num-keys 2048 --head-dim 128 --num-queries 6 --candidates 40,5%,300", {40, 103, 300}},
      {trace + " --profile " + SEINE_TEST_PROFILE + " --candidates 1%,2%", {77, 153}},
      {trace + " --candidates 100%", {7616}},
  };
  for (const auto& [line, numbers] : runs) {
    SCOPED_TRACE(line);
    const ProgramRun run = RunBench(line + " -o json");
    ASSERT_EQ(run.exit_code, 0) << run.err;
    const auto json = nlohmann::json::parse(run.out);
    EXPECT_TRUE(json["left_out"].empty()) << json["left_out"];
    std::map<int, std::set<std::string>> methods;
    for (const auto& row : json["rows"]) {
      SCOPED_TRACE(row.dump());
      EXPECT_EQ(row["tokens_held"], json["num_keys"]);
      EXPECT_EQ(row["head_dim"], json["head_dim"]);
      EXPECT_EQ(row["tokens_attended"], std::min<double>(100, row["candidates"]));
      EXPECT_LE(row["recall_at_k"], row["recall_exact"]);
      EXPECT_LE(row["recall_exact"].get<double>(), std::min(1., row["candidates"].get<double>() / 100));
      EXPECT_GT(row["bytes_read"], 0);
      if (row["candidates_asked"].is_null()) {
        EXPECT_EQ(row["share"], "own");
        EXPECT_GE(row["rho"], row["beta"]);
        continue;
      }
      EXPECT_EQ(row["candidates_fewest"], row["candidates_asked"]);
      EXPECT_EQ(row["candidates_most"], row["candidates_asked"]);
      methods[row["candidates_asked"]].insert(row["method"]);
    }
    ASSERT_EQ(methods.size(), numbers.size());
    for (const int number : numbers) EXPECT_EQ(methods[number].size(), 9u) << number;
  }
}

// Who scores every candidate exactly misses nothing that is among them; all keys hold all.
TEST(EqualTest, AllKeysAreRight) {
  const auto dataset = MadeUp(512, 64);
  const int64_t all = dataset->info().num_keys();
  std::vector<std::unique_ptr<Method>> methods;
  methods.push_back(MakeQuestMethod(dataset->info(), 16, 20, {all / 2, all}));
  auto pq = MakeFaissPq(dataset->info(), 8, 20, {all / 2, all});
  ASSERT_TRUE(pq.ok()) << pq.status();
  methods.push_back(*std::move(pq));
  const auto rows = MeasureEqual(*dataset, TruthOf(dataset->info(), 20), methods);
  ASSERT_TRUE(rows.ok()) << rows.status();
  for (const EqualRow& row : *rows) {
    SCOPED_TRACE(row.name);
    EXPECT_EQ(row.recall_at_k, row.recall_exact);
    if (row.asked == all) {
      EXPECT_EQ(row.recall_at_k, 1);
    }
  }
}

TEST(EqualTest, FlagsWithoutEffectAreRefused) {
  const std::string synthetic = "recall --synthetic rope --num-keys 1024 --head-dim 64 ";
  ExpectWrongFlags({
      {synthetic + "--candidates 0", "--candidates: 0 is neither a number in [1, 1024]"},
      {synthetic + "--candidates 1025", "--candidates: 1025 is neither"},
      {synthetic + "--candidates 0%", "--candidates: 0% is no share"},
      {synthetic + "--candidates many", "--candidates: many is neither"},
      {synthetic + "--candidates 5% --beta .05", "--candidate-fraction: has no effect beside --candidates"},
      {synthetic + "--candidates 5% --compare", "--compare: has no effect"},
      {synthetic + "--candidates 5% --codec rsq", "--codec: has no effect"},
      {synthetic + "--candidates 5% --scope kv_head", "--scope: has no effect"},
      {synthetic + "--candidates 5% --schedule paper", "--schedule: has no effect"},
      {synthetic + "--schedule paper", "--schedule: paper is collision's"},
      {synthetic + "--schedule theirs", "--schedule"},
      {synthetic + "--coarse collision --schedule paper --beta .1", "--candidate-fraction: --schedule paper sets"},
      {synthetic + "--compare --schedule paper --rho .3", "--collision-fraction: --schedule paper sets it"},
      {synthetic + "--compare --rho .2 --beta .02,.25", "--collision-fraction: 0.2 is below --candidate-fraction 0.25"},
      {synthetic + "--rho .3", "--collision-fraction: is collision's"},
  });
}

// Rho follows a share that is larger; a schedule sets both by the length of the zone.
TEST(EqualTest, CollisionCoversNoFewerKeysThanAreCandidates) {
  const auto rows_of = [](const std::string& flags) {
    const ProgramRun run = RunBench("recall --synthetic gaussian --num-keys 1024 --head-dim 64 --num-queries 2 " +
                                    flags + " --coarse collision --cache warm -o json");
    EXPECT_EQ(run.exit_code, 0) << run.err;
    return nlohmann::json::parse(run.out)["rows"];
  };
  auto rows = rows_of("--beta .1,.5");
  EXPECT_EQ(rows[0]["rho"], .2);
  EXPECT_EQ(rows[1]["rho"], .5);
  rows = rows_of("--beta .1 --rho .4");
  EXPECT_EQ(rows[0]["rho"], .4);
  rows = rows_of("--schedule paper");
  EXPECT_EQ(rows[0]["beta"], .5);
  EXPECT_EQ(rows[0]["rho"], .5);
  EXPECT_EQ(rows[0]["candidates"], 512);
}

}  // namespace
}  // namespace seine::bench
