// The whole bench on small data: floors, exactness, and the report's contract.
#include "bench/measures/recall.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "bench/machine/median.h"
#include "bench/tables/recall_report.h"
#include "tests/bench/test_util.h"

namespace seine::bench {
namespace {

RecallOptions Options(const DatasetInfo& info, Scope scope, GqaReduce reduce) {
  RecallOptions o;
  o.truth = {info.head_dim, scope == Scope::kPerQHead ? 1 : info.group,      100, scope,
             reduce,        1 / std::sqrt(static_cast<float>(info.head_dim))};
  o.cold = false;
  o.timed_asks = 12;
  return o;
}

SeineOptions Seine(const DatasetInfo& info, const RecallOptions& o) {
  SeineOptions s;
  s.name = "seine";
  s.search.scope = o.truth.scope;
  s.search.gqa_reduce = o.truth.reduce;
  s.group = o.truth.group;
  s.head_dim = info.head_dim;
  s.dtype = info.dtype;
  s.with_exact = true;
  return s;
}

std::unique_ptr<Dataset> Synthetic(const std::string& kind) {
  DatasetOptions o;
  o.synthetic = kind;
  o.num_keys = 4096 + 17;  // cut to a multiple of 64
  o.head_dim = 64;
  o.num_queries = 24;
  auto dataset = Dataset::Open(o);
  EXPECT_TRUE(dataset.ok()) << dataset.status();
  return *std::move(dataset);
}

std::unique_ptr<Dataset> Trace() {
  DatasetOptions o;
  o.trace = SEINE_TRACE;
  o.layers = {15};
  o.num_queries = 6;
  auto dataset = Dataset::Open(o);
  EXPECT_TRUE(dataset.ok()) << dataset.status();
  return *std::move(dataset);
}

class RecallTest : public ::testing::Test {
 protected:
  std::vector<Row> Measure(const Dataset& dataset, const RecallOptions& options,
                           std::vector<std::unique_ptr<Method>> methods) {
    auto rows = MeasureRecall(dataset, options, methods, &probe_);
    EXPECT_TRUE(rows.ok()) << rows.status();
    return rows.ok() ? *rows : std::vector<Row>();
  }

  RecallTest() { probe_.Measure(1); }

  std::unique_ptr<Backend> backend_ = MakeCpuBackend(1);
  MemoryProbe probe_{backend_.get()};
};

TEST_F(RecallTest, FloorsOnSyntheticKeys) {
  // A plain numpy reading of sign_ip (docs/codecs.md) gives .83, .72, .88 and .81 with other signs of the rotation.
  const std::map<std::string, double> floors = {{"gaussian", .79}, {"anisotropic", .67}, {"rope", .85}, {"drift", .79}};
  for (const auto& [kind, floor] : floors) {
    SCOPED_TRACE(kind);
    const auto dataset = Synthetic(kind);
    EXPECT_EQ(dataset->info().num_keys(), 4096);
    const RecallOptions options = Options(dataset->info(), Scope::kPerQHead, GqaReduce::kSoftmaxSum);
    SeineOptions seine = Seine(dataset->info(), options);
    seine.betas = {.1, 1};
    std::vector<std::unique_ptr<Method>> methods;
    methods.push_back(MakeSeineMethod(seine, backend_.get()));
    const std::vector<Row> rows = Measure(*dataset, options, std::move(methods));
    ASSERT_EQ(rows.size(), 3u);
    EXPECT_GE(rows[0].recall_at_k, floor);
    EXPECT_LE(rows[0].recall_at_k, *rows[0].coarse_recall);
    EXPECT_GE(rows[1].recall_at_k, .99);  // all keys are candidates, 200 of them exact
    EXPECT_EQ(*rows[1].coarse_recall, 1);
    EXPECT_EQ(rows[2].recall_at_k, 1);
    EXPECT_NEAR(rows[0].scan_bytes_per_key, 8 + 1 + 4. / 64 + 68. / 64, 1e-9);
    EXPECT_NEAR(*rows[0].scan_bandwidth_share,
                rows[0].scan_bytes_per_key / *rows[0].scan_ns_per_key / probe_.best_gb_s(), 1e-9);
  }
}

// Our exact scan is the truth itself, whatever a group agrees by; the index comes near it.
TEST_F(RecallTest, RealKeysInEveryScope) {
  const auto dataset = Trace();
  ASSERT_EQ(dataset->info().group, 3);
  for (Scope scope : {Scope::kPerQHead, Scope::kPerKvHead}) {
    for (GqaReduce reduce : {GqaReduce::kSoftmaxSum, GqaReduce::kMax, GqaReduce::kMean}) {
      if (scope == Scope::kPerQHead && reduce != GqaReduce::kSoftmaxSum) continue;  // nothing to reduce
      SCOPED_TRACE(static_cast<int>(scope) * 10 + static_cast<int>(reduce));
      const RecallOptions options = Options(dataset->info(), scope, reduce);
      SeineOptions seine = Seine(dataset->info(), options);
      seine.betas = {.25};
      std::vector<std::unique_ptr<Method>> methods;
      methods.push_back(MakeSeineMethod(seine, backend_.get()));
      const std::vector<Row> rows = Measure(*dataset, options, std::move(methods));
      ASSERT_EQ(rows.size(), 2u);
      EXPECT_GE(rows[0].recall_at_k, .97);
      EXPECT_GE(*rows[0].attention_mass, .98);
      EXPECT_LE(rows[0].recall_at_k_worst_head, rows[0].recall_at_k);
      EXPECT_GE(rows[1].recall_at_k, .999);  // fp32 sums in another order may swap neighbours at the edge
    }
  }
}

TEST_F(RecallTest, FaissBaselinesAnswer) {
  const auto dataset = Synthetic("rope");
  const RecallOptions options = Options(dataset->info(), Scope::kPerQHead, GqaReduce::kSoftmaxSum);
  std::vector<std::unique_ptr<Method>> methods;
  for (const char* name : {"faiss_flat", "faiss_pq_fastscan", "faiss_ivfpq"}) {
    auto made = MakeFaissMethods(name, 64, 100, 4096, {.2});
    ASSERT_TRUE(made.ok()) << made.status();
    for (auto& m : *made) methods.push_back(std::move(m));
  }
  const std::vector<Row> rows = Measure(*dataset, options, std::move(methods));
  ASSERT_EQ(rows.size(), 4u);
  EXPECT_GE(rows[0].recall_at_k, .999);
  EXPECT_GE(rows[1].recall_at_k, .85);
  EXPECT_GE(rows[2].recall_at_k, rows[1].recall_at_k);  // twice the bytes
  EXPECT_GE(rows[3].recall_at_k, .3);                   // a quarter of the lists
  EXPECT_EQ(MakeFaissMethods("faiss_hnsw", 64, 100, 4096, {.2}).status().message(),
            "--baseline: \"faiss_hnsw\" is none of faiss_flat, faiss_pq_fastscan, faiss_ivfpq");
}

TEST_F(RecallTest, ProbeReadsMemory) {
  ASSERT_TRUE(probe_.ok());
  const double first = probe_.best_gb_s();
  EXPECT_GT(first, .1);
  EXPECT_LT(first, 1000);
  const double evicting = probe_.EvictCaches();
  EXPECT_LE(evicting, probe_.best_gb_s());
  EXPECT_GE(probe_.best_gb_s(), first);
  EXPECT_GE(LastLevelCacheBytes(), size_t{1} << 20);
}

TEST(MedianTest, OfOddEvenAndNone) {
  EXPECT_EQ(Median({3, 1, 2}), 2);
  EXPECT_EQ(Median({4, 1, 2, 3}), 2.5);
  EXPECT_EQ(Median({}), 0);
}

TEST(ReportTest, ExactIsTheFastestOfTheSameWidth) {
  RecallReport report;
  report.data.head_dim = 128;
  report.data.dtype = DType::kFloat32;
  const auto exact = [](const char* name, double bytes, double us, bool peer) {
    Row row;
    row.name = name;
    row.exact = true;
    row.peer = peer;
    row.bytes_per_key = bytes;
    row.us_per_query = us;
    return row;
  };
  report.rows = {exact("ours fp32", 512, 20, false), exact("ours fp16", 256, 10, false), exact("peer", 512, 15, true)};
  EXPECT_EQ(report.FastestExact().name, "peer");
  ASSERT_NE(report.ExactFp16(), nullptr);
  EXPECT_EQ(report.ExactFp16()->name, "ours fp16");
}

}  // namespace
}  // namespace seine::bench
