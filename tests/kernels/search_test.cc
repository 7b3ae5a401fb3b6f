// The whole pipeline on one head: recall floors, ties, scopes and reductions against brute force, the same on every
// target.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "kernels/codecs/kinds/balanced.h"
#include "kernels/codecs/kinds/rsq.h"
#include "kernels/ops/search/search_cpu.h"
#include "tests/kernels/test_util.h"

namespace seine {
namespace {

std::vector<double> Logits(const Zone& zone, const float* query) {
  std::vector<double> out;
  for (size_t i = 0; i < zone.keys.size() / zone.dim; ++i) {
    out.push_back(Dot64(&zone.keys[i * zone.dim], query, zone.dim) / std::sqrt(zone.dim));
  }
  return out;
}

std::vector<int32_t> Top(const std::vector<double>& scores, size_t k) {
  std::vector<int32_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return scores[a] > scores[b]; });
  order.resize(std::min(k, order.size()));
  std::sort(order.begin(), order.end());
  return order;
}

double Overlap(const std::vector<int32_t>& a, const std::vector<int32_t>& b) {
  std::vector<int32_t> both;
  std::set_intersection(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(both));
  return static_cast<double>(both.size()) / static_cast<double>(b.size());
}

SearchParams PerQuery(int top_k, double beta) {
  SearchParams p;
  p.top_k = top_k;
  p.candidate_fraction = beta;
  p.scope = Scope::kPerQHead;
  return p;
}

double MeanRecall(const Zone& zone, const SearchParams& params, int queries) {
  double recall = 0;
  for (int i = 0; i < queries; ++i) {
    const std::vector<float> query = Gaussian(zone.dim, 1000 + i);
    SearchOutput out;
    cpu::SearchOne(zone.Task(query), params, &out);
    recall += Overlap(out.positions[0], Top(Logits(zone, query.data()), params.top_k)) / queries;
  }
  return recall;
}

TEST(Search, RecallFloorsForEveryHeadDim) {
  for (const int dim : kTestHeadDims) {
    RsqOptions options;
    options.head_dim = dim;
    const Zone zone(Keys(8192, dim, 3), dim, options);
    EXPECT_GT(MeanRecall(zone, PerQuery(100, .10), 8), .88) << dim;
    EXPECT_GT(MeanRecall(zone, PerQuery(100, .25), 8), .985) << dim;
  }
}

TEST(Search, CollisionFindsLessThanSignIpFromTheSameBytes) {
  RsqOptions options;
  options.centre = Centre::kNone;
  const Zone zone(Keys(8192, 128, 3), 128, options);
  SearchParams paper = PerQuery(100, .10);
  paper.coarse = Coarse::kCollision;
  const double collision = MeanRecall(zone, paper, 8), sign_ip = MeanRecall(zone, PerQuery(100, .10), 8);
  EXPECT_GT(collision, .33);
  EXPECT_GT(sign_ip, collision);
}

// Tiers of a thousandth of the keys: most keys collide nowhere, and none of those is a candidate, however many are
// wanted. Where all are, none is left out.
TEST(Search, KeysThatDoNotCollideAreNoCandidates) {
  RsqOptions options;
  options.head_dim = 64;
  options.centre = Centre::kNone;
  for (const int n : {8192, 40960}) {
    const Zone zone(Keys(n, 64, 3), 64, options, 2048);
    for (const int seed : {1, 2, 3}) {
      const std::vector<float> query = Gaussian(64, seed);
      // By hand: the centroids of each subvector in the order of their products, until the tiers' share is covered.
      PreparedQuery prepared;
      zone.codec->PrepareQuery(query.data(), &prepared);
      std::vector<bool> collides(n, false);
      for (int b = 0; b < 8; ++b) {
        std::vector<std::pair<float, int>> order;
        for (int id = 0; id < 256; ++id) {
          float product = 0;
          for (int j = 0; j < 8; ++j) product += (id >> j & 1 ? 1.0f : -1.0f) * prepared.transformed[b * 8 + j];
          order.emplace_back(-product, id);
        }
        std::sort(order.begin(), order.end());
        std::set<int> covering;
        for (int covered = 0, i = 0; covered < std::ceil(n * .001); ++i) {
          covering.insert(order[i].second);
          covered += static_cast<int>(zone.counts[b * 256 + order[i].second]);
        }
        for (int i = 0; i < n; ++i) {
          uint8_t row[8];
          CopyCoarseRow(CoarseRowAt(zone.segments[i / 2048].coarse, 8, i % 2048), 8, row);
          if (covering.count(row[b]) > 0) collides[i] = true;
        }
      }
      std::vector<int32_t> want;
      for (int i = 0; i < n; ++i) {
        if (collides[i]) want.push_back(i);
      }
      ASSERT_LT(want.size(), n / 4u);
      SearchParams params = PerQuery(50, .25);
      params.coarse = Coarse::kCollision;
      params.collision_fraction = .001;
      params.with_candidates = true;
      SearchOutput out;
      cpu::SearchOne(zone.Task(query), params, &out);
      EXPECT_EQ(out.candidates[0], want);
      EXPECT_EQ(out.positions[0].size(), std::min<size_t>(50, want.size()));
      params.candidate_fraction = 1;
      cpu::SearchOne(zone.Task(query), params, &out);
      EXPECT_EQ(out.candidates[0].size(), static_cast<size_t>(n));
    }
  }
}

// What is counted beyond the searched keys changes nothing: the answer is that of a zone that ends with them.
TEST(Search, TiersAreOfTheSearchedKeysAlone) {
  RsqOptions options;
  options.head_dim = 64;
  options.centre = Centre::kNone;
  const std::vector<float> keys = Keys(40960, 64, 3), query = Gaussian(64, 7);
  const Zone whole(keys, 64, options, 2048);
  for (const int n : {64, 4096, 8256, 20480, 32832, 40960}) {
    const Zone searched({keys.begin(), keys.begin() + int64_t{n} * 64}, 64, options, 2048);
    SearchTask cut = whole.Task(query);
    cut.num_keys = n;
    for (const double rho : {.02, .3}) {
      SearchParams params = PerQuery(50, .02);
      params.coarse = Coarse::kCollision;
      params.collision_fraction = rho;
      params.with_candidates = true;
      SearchOutput got, want;
      cpu::SearchOne(cut, params, &got);
      cpu::SearchOne(searched.Task(query), params, &want);
      EXPECT_EQ(got.candidates, want.candidates) << n << " " << rho;
      EXPECT_EQ(got.positions, want.positions) << n << " " << rho;
    }
  }
}

TEST(Search, LongZonesSampleAndStillChooseExactlyTheBest) {
  RsqOptions options;
  options.head_dim = 64;
  const int n = 40960;
  const Zone zone(Keys(n, 64, 17), 64, options, 2048);
  const std::vector<float> query = Gaussian(64, 18);
  SearchParams params = PerQuery(50, .03);
  params.with_candidates = true;
  SearchOutput out;
  cpu::SearchOne(zone.Task(query), params, &out);
  ASSERT_EQ(out.candidates[0].size(), 1229u);  // ceil(.03 n)
  PreparedQuery prepared;
  zone.codec->PrepareQuery(query.data(), &prepared);
  std::vector<double> scores;
  for (size_t s = 0; s < zone.segments.size(); ++s) {
    cpu::ScanArgs args;
    args.planes = zone.segments[s];
    args.layout = &zone.codec->layout();
    args.queries[0].prepared = &prepared;
    args.end = 2048;
    std::vector<float> part(2048), bases(32);
    float *const to_scores = part.data(), *const to_bases = bases.data();
    cpu::ScanScores(args, &to_scores, &to_bases);
    scores.insert(scores.end(), part.begin(), part.end());
  }
  EXPECT_EQ(out.candidates[0], Top(scores, 1229));
}

// The good keys stand in the sampled windows alone, so the first threshold lets too few through.
TEST(Search, TheDefaultFractionFallsWithTheLengthOfABalancedZoneAlone) {
  const int dim = 64, n = 32768;
  for (const bool balanced : {false, true}) {
    BalancedOptions options;
    options.head_dim = dim;
    options.key_map.assign(static_cast<size_t>(dim) * dim, 0);
    for (int i = 0; i < dim; ++i) options.key_map[i * dim + i] = 1;
    options.query_map = options.key_map;
    options.lambda.assign(dim, 1);
    options.coarse_bits.assign(dim, 1);
    options.total_bits.assign(dim, 2);
    const std::shared_ptr<const Codec> codec = balanced ? MakeBalancedCodec(options) : MakeRsqCodec({.head_dim = dim});
    EXPECT_EQ(codec->DefaultCandidateFraction(64), .05);
    EXPECT_EQ(codec->DefaultCandidateFraction(8192), .05);
    EXPECT_DOUBLE_EQ(codec->DefaultCandidateFraction(4 * 8192), balanced ? .025 : .05);
    const Zone zone(Gaussian(static_cast<size_t>(n) * dim, 3), dim, codec);
    const std::vector<float> query = Gaussian(dim, 5);
    SearchOutput usual, told;
    cpu::SearchOne(zone.Task(query), PerQuery(20, 0), &usual);
    cpu::SearchOne(zone.Task(query), PerQuery(20, codec->DefaultCandidateFraction(n)), &told);
    EXPECT_EQ(usual.positions, told.positions);
    EXPECT_EQ(usual.stats.candidates, balanced ? 820 : 1639);
  }
}

TEST(Search, ASampleThatMisleadsIsRepairedAndCounted) {
  RsqOptions options;
  options.head_dim = 64;
  options.centre = Centre::kNone;
  const int n = 65536, dim = 64;
  std::vector<float> keys = Gaussian(static_cast<size_t>(n) * dim, 23, .01f);
  const std::vector<float> query = Gaussian(dim, 24);
  for (int w = 0; w < n / 64; ++w) {  // windows 4, 12, 20, ... are sampled
    if (w % 8 != 4) continue;
    for (int i = 0; i < 64; ++i) {
      for (int j = 0; j < dim; ++j) keys[(static_cast<size_t>(w) * 64 + i) * dim + j] += query[j];
    }
  }
  const Zone zone(keys, dim, options, 2048);
  SearchOutput out;
  SearchParams params = PerQuery(20, .5);
  cpu::SearchOne(zone.Task(query), params, &out);
  EXPECT_GT(out.stats.rescans, 0);
  for (const int32_t p : out.positions[0]) EXPECT_EQ(p / 64 % 8, 4) << p;
}

TEST(Search, TheSameAnswerOnEveryTarget) {
  for (const int dim : {64, 80, 128}) {
    for (const Coarse coarse : {Coarse::kSignIp, Coarse::kCollision}) {
      RsqOptions options;
      options.head_dim = dim;
      options.centre = coarse == Coarse::kSignIp ? Centre::kWindow : Centre::kNone;
      const Zone zone(Keys(4096, dim, 3), dim, options);
      const std::vector<float> queries = Gaussian(4 * dim, 5);
      for (const Scope scope : {Scope::kPerKvHead, Scope::kPerQHead}) {
        SearchParams params = PerQuery(64, .08);
        params.coarse = coarse;
        params.scope = scope;
        params.mass_p = .9f;
        std::vector<std::vector<int32_t>> want;
        std::vector<std::vector<float>> scores;
        std::vector<float> masses;
        OnEveryTarget([&](const std::string&) {
          SearchOutput out;
          cpu::SearchOne(zone.Task(queries), params, &out);
          if (want.empty()) want = out.positions, scores = out.scores, masses = out.masses;
          ASSERT_EQ(out.positions, want);
          ASSERT_EQ(out.scores, scores);
          ASSERT_EQ(out.masses, masses);
        });
      }
    }
  }
}

TEST(Search, EqualKeysAreTakenFromTheLowestPosition) {
  RsqOptions options;
  std::vector<float> one = Gaussian(128, 1), keys;
  for (int i = 0; i < 2048; ++i) keys.insert(keys.end(), one.begin(), one.end());
  const Zone zone(keys, 128, options);
  SearchTask task = zone.Task(one);
  task.zone_begin = 16;
  std::vector<float> padded(16 * 128, 0.0f);
  padded.insert(padded.end(), keys.begin(), keys.end());
  const uint8_t* chunk = reinterpret_cast<const uint8_t*>(padded.data());
  task.keys = {&chunk, 4096, 128, DType::kFloat32};
  for (const Method method : {Method::kIndex, Method::kExact}) {
    SearchParams params = PerQuery(10, .05);
    params.method = method;
    SearchOutput out;
    cpu::SearchOne(task, params, &out);
    for (int i = 0; i < 10; ++i) EXPECT_EQ(out.positions[0][i], 16 + i);
  }
}

TEST(Search, TopKBeyondTheZoneGivesAllOfIt) {
  RsqOptions options;
  const Zone zone(Keys(128, 128, 2), 128, options);
  SearchOutput out;
  const std::vector<float> query = Gaussian(128, 3);
  cpu::SearchOne(zone.Task(query), PerQuery(500, .05), &out);
  ASSERT_EQ(out.positions[0].size(), 128u);
  for (int i = 0; i < 128; ++i) EXPECT_EQ(out.positions[0][i], i);
}

TEST(Search, WithoutAStoreTheCodesDecide) {
  RsqOptions options;
  const Zone zone(Keys(4096, 128, 2), 128, options);
  std::vector<float> query = Gaussian(128, 3), other = Gaussian(128, 4, .5f);  // two heads of a group look alike
  for (int j = 0; j < 128; ++j) other[j] += query[j];
  query.insert(query.end(), other.begin(), other.end());
  for (const Scope scope : {Scope::kPerQHead, Scope::kPerKvHead}) {
    SearchTask task = zone.Task(query);
    task.keys.chunks = nullptr;
    SearchParams params = PerQuery(100, .25);
    params.scope = scope;
    params.gqa_reduce = GqaReduce::kMean;
    SearchOutput out, exact;
    cpu::SearchOne(task, params, &out);
    EXPECT_EQ(out.stats.refined, 0);
    params.method = Method::kExact;
    cpu::SearchOne(zone.Task(query), params, &exact);
    EXPECT_GT(Overlap(out.positions[0], exact.positions[0]), .75);
  }
}

// One set a group, from every key of the zone and every reduction, against float64.
TEST(Search, GroupReductionsAgainstBruteForce) {
  RsqOptions options;
  options.head_dim = 64;
  const int n = 2048, dim = 64, group = 3, dense = 100;
  const Zone zone(Keys(n, dim, 12), dim, options);
  const std::vector<float> queries = Gaussian(group * dim, 13, .7f), local = Keys(dense, dim, 14);
  for (const GqaReduce reduce : {GqaReduce::kSoftmaxSum, GqaReduce::kMax, GqaReduce::kMean}) {
    std::vector<double> want(n, reduce == GqaReduce::kMax ? -1e300 : 0);
    for (int g = 0; g < group; ++g) {
      const std::vector<double> logits = Logits(zone, &queries[g * dim]);
      double sum = 0;
      for (const double l : logits) sum += std::exp(l);
      for (int i = 0; i < dense; ++i) sum += std::exp(Dot64(&local[i * dim], &queries[g * dim], dim) / 8);
      for (int i = 0; i < n; ++i) {
        if (reduce == GqaReduce::kSoftmaxSum) want[i] += std::exp(logits[i]) / sum;
        if (reduce == GqaReduce::kMax) want[i] = std::max(want[i], logits[i]);
        if (reduce == GqaReduce::kMean) want[i] += logits[i] / group;
      }
    }
    for (const Method method : {Method::kExact, Method::kIndex}) {
      SearchTask task = zone.Task(queries);
      task.dense = {{{local.data(), dim * sizeof(float), DType::kFloat32}, dense}};
      SearchParams params = PerQuery(60, 1.0);
      params.rescore_k = n;
      params.scope = Scope::kPerKvHead;
      params.gqa_reduce = reduce;
      params.method = method;
      SearchOutput out;
      cpu::SearchOne(task, params, &out);
      ASSERT_EQ(out.positions.size(), 1u);
      EXPECT_GE(Overlap(out.positions[0], Top(want, 60)), 59 / 60.0);
      for (size_t i = 0; i < 60; ++i) {
        // The index estimates the candidates' part of the log-sum-exp from 4-bit codes.
        const double tolerance = method == Method::kExact ? 1e-4 : reduce == GqaReduce::kSoftmaxSum ? .05 : 1e-4;
        const double value = want[out.positions[0][i]];
        EXPECT_NEAR(out.scores[0][i], value, tolerance * std::max(std::fabs(value), 1e-9));
      }
    }
  }
}

TEST(Search, MassStopsAtTheSmallestSetThatReachesIt) {
  RsqOptions options;
  const Zone zone(Keys(4096, 128, 6), 128, options);
  const std::vector<float> query = Gaussian(128, 7, 1.5f);
  const std::vector<double> logits = Logits(zone, query.data());
  double total = 0;
  for (const double l : logits) total += std::exp(l);
  for (const float p : {.3f, .8f}) {
    SearchParams params = PerQuery(4096, 1.0);
    params.method = Method::kExact;
    params.mass_p = p;
    SearchOutput out;
    cpu::SearchOne(zone.Task(query), params, &out);
    double mass = 0, smallest = 1e300;
    for (const int32_t i : out.positions[0])
      mass += std::exp(logits[i]) / total, smallest = std::min(smallest, std::exp(logits[i]));
    EXPECT_GE(mass, p - 1e-4);
    EXPECT_LT(mass - smallest / total, p + 1e-4);
    const size_t exact = out.positions[0].size();
    params.mass_floor = static_cast<int>(exact) + 7;
    cpu::SearchOne(zone.Task(query), params, &out);
    EXPECT_EQ(out.positions[0].size(), exact + 7);
    params.mass_floor = 1;
    params.top_k = 3;
    cpu::SearchOne(zone.Task(query), params, &out);
    EXPECT_LE(out.positions[0].size(), 3u);
  }
}

TEST(Search, ABatchOnManyThreadsEqualsOneByOne) {
  RsqOptions options;
  options.head_dim = 64;
  const Zone zone(Keys(4096, 64, 6), 64, options);
  const auto backend = MakeCpuBackend(4);
  std::vector<std::vector<float>> queries;
  std::vector<SearchTask> tasks;
  for (int i = 0; i < 24; ++i) queries.push_back(Gaussian(64, i));
  for (const auto& q : queries) tasks.push_back(zone.Task(q));
  std::vector<SearchOutput> outputs(tasks.size());
  ASSERT_EQ(backend->Search(tasks.data(), static_cast<int>(tasks.size()), PerQuery(32, .05), outputs.data()),
            Outcome::kDone);
  for (size_t i = 0; i < tasks.size(); ++i) {
    SearchOutput one;
    cpu::SearchOne(tasks[i], PerQuery(32, .05), &one);
    EXPECT_EQ(outputs[i].positions, one.positions);
  }
}

}  // namespace
}  // namespace seine
