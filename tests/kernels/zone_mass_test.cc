// The softmax mass of a zone as a search estimates it from a share of its keys, against float64 over all of them: what
// mass_p answers hold and say that they hold, and the weights of SOFTMAX_SUM, for flat and peaked logits.
#include "kernels/ops/query/zone_mass.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/codecs/balanced/errors.h"
#include "kernels/codecs/kinds/balanced.h"
#include "kernels/codecs/kinds/rsq.h"
#include "kernels/ops/search/search_cpu.h"
#include "tests/kernels/test_util.h"

namespace seine {
namespace {

// Each key's softmax weight over the zone, [group][n].
std::vector<std::vector<double>> Weights(const Zone& zone, const std::vector<float>& queries) {
  std::vector<std::vector<double>> out;
  const size_t n = zone.keys.size() / zone.dim;
  for (size_t g = 0; g < queries.size() / zone.dim; ++g) {
    std::vector<double>& w = out.emplace_back(n);
    for (size_t i = 0; i < n; ++i) {
      w[i] = Dot64(&zone.keys[i * zone.dim], &queries[g * zone.dim], zone.dim) / std::sqrt(zone.dim);
    }
    const double most = *std::max_element(w.begin(), w.end());
    double sum = 0;
    for (double& x : w) sum += x = std::exp(x - most);
    for (double& x : w) x /= sum;
  }
  return out;
}

double MassOf(const std::vector<double>& weights, const std::vector<int32_t>& positions) {
  double mass = 0;
  for (const int32_t p : positions) mass += weights[p];
  return mass;
}

SearchParams OfMass(float p, int cap) {
  SearchParams params;
  params.mass_p = p;
  params.top_k = cap;
  params.rescore_k = cap;
  params.candidate_fraction = .05;
  params.scope = Scope::kPerQHead;
  return params;
}

std::shared_ptr<const Codec> Rsq(int dim, Centre centre) {
  RsqOptions options;
  options.head_dim = dim;
  options.centre = centre;
  return MakeRsqCodec(options);
}

// A balanced codec for keys of independent coordinates: one bit each in the scan, two in all.
std::shared_ptr<const Codec> Plain(int dim) {
  BalancedOptions o;
  o.head_dim = dim;
  o.key_map.assign(static_cast<size_t>(dim) * dim, 0.0f);
  for (int i = 0; i < dim; ++i) o.key_map[static_cast<size_t>(i) * dim + i] = 1;
  o.query_map = o.key_map;
  o.lambda.assign(dim, 1.0f);
  o.coarse_bits.assign(dim, 1);
  o.total_bits.assign(dim, 2);
  return MakeBalancedCodec(o);
}

// The example: 8,192 keys of nearly the same logit. 1 % of the mass is 1 % of the keys; a fifth of it is beyond
// the cap, which says so.
TEST(ZoneMass, OfFlatLogitsIsTheirShareOfTheZone) {
  const int dim = 64, n = 8192;
  const std::vector<float> query = Gaussian(dim, 2, .05f);
  for (const auto& codec : {Rsq(dim, Centre::kWindow), Plain(dim)}) {
    const Zone zone(Gaussian(size_t{n} * dim, 1), dim, codec);
    const auto weights = Weights(zone, query);
    SearchOutput out;
    cpu::SearchOne(zone.Task(query), OfMass(.01f, 100), &out);
    EXPECT_NEAR(MassOf(weights[0], out.positions[0]), .01, 5e-4);
    EXPECT_NEAR(out.masses[0], MassOf(weights[0], out.positions[0]), 2e-4);
    EXPECT_FALSE(out.capped[0]);
    cpu::SearchOne(zone.Task(query), OfMass(.2f, 100), &out);
    EXPECT_EQ(out.positions[0].size(), 100u);
    EXPECT_TRUE(out.capped[0]);
    EXPECT_NEAR(out.masses[0], MassOf(weights[0], out.positions[0]), 2e-4);
    cpu::SearchOne(zone.Task(query), OfMass(.2f, 1900), &out);
    EXPECT_NEAR(MassOf(weights[0], out.positions[0]), .2, .005);
    EXPECT_FALSE(out.capped[0]);
  }
}

// Mean over queries of what the answer says that it holds, less what it does, and the largest difference.
struct Errors {
  double mean = 0, most = 0, mass = 0;
};
Errors ErrorsOf(const Zone& zone, SearchParams params, float size, int queries) {
  Errors e;
  for (int i = 0; i < queries; ++i) {
    const std::vector<float> query = Gaussian(zone.dim, 100 + i, size);
    SearchOutput out;
    cpu::SearchOne(zone.Task(query), params, &out);
    const double mass = MassOf(Weights(zone, query)[0], out.positions[0]), error = out.masses[0] - mass;
    e.mean += error / queries;
    e.mass += mass / queries;
    e.most = std::max(e.most, std::fabs(error));
  }
  return e;
}

// Logits of standard deviation .3, 1, 2 and 4: from flat to all of the mass in a few keys. Short zones and long ones,
// with and without centres, both scans.
TEST(ZoneMass, IsThatOfAllKeysHoweverTheyAreSpread) {
  const int dim = 64;
  struct Case {
    int n;
    std::shared_ptr<const Codec> codec;
    Coarse coarse;
  };
  const std::vector<Case> cases = {
      {2048, Plain(dim), Coarse::kSignIp},
      {8192, Plain(dim), Coarse::kSignIp},
      {40960, Plain(dim), Coarse::kSignIp},
      {8192, Rsq(dim, Centre::kWindow), Coarse::kSignIp},
      {40960, Rsq(dim, Centre::kWindow), Coarse::kSignIp},
      {8192, Rsq(dim, Centre::kNone), Coarse::kSignIp},
      {8192, Rsq(dim, Centre::kGlobal), Coarse::kSignIp},
      {8192, Rsq(dim, Centre::kNone), Coarse::kCollision},
      {40960, Rsq(dim, Centre::kNone), Coarse::kCollision},
  };
  for (size_t c = 0; c < cases.size(); ++c) {
    const Zone zone(Keys(cases[c].n, dim, 3), dim, cases[c].codec, 2048);
    for (const float size : {.3f, 1.0f, 2.0f, 4.0f}) {
      SCOPED_TRACE(testing::Message() << "case " << c << ", logits of " << size);
      SearchParams params = OfMass(.9999f, 100);
      params.coarse = cases[c].coarse;
      const Errors e = ErrorsOf(zone, params, size, 12);
      if (cases[c].codec->centre() == Centre::kNone) {  // a guide: never much more than is there
        EXPECT_LT(e.mean, .05);
        continue;
      }
      EXPECT_LT(std::fabs(e.mean), .025);
      EXPECT_LT(e.most, .12);
    }
  }
}

// A set's scores under SOFTMAX_SUM are the group's softmax weights over the zone and the dense runs.
TEST(ZoneMass, SoftmaxSumsAreOverTheZoneAndTheDenseRuns) {
  const int dim = 64, n = 8192, dense = 100, group = 3;
  const std::vector<float> queries = Gaussian(group * dim, 13, .7f), local = Keys(dense, dim, 14);
  const Zone zone(Keys(n, dim, 12), dim, Plain(dim));
  std::vector<double> want(n);
  for (int g = 0; g < group; ++g) {
    std::vector<double> logits;
    double sum = 0;
    for (int i = 0; i < n; ++i) {
      sum += std::exp(logits.emplace_back(Dot64(&zone.keys[i * dim], &queries[g * dim], dim) / 8));
    }
    for (int i = 0; i < dense; ++i) sum += std::exp(Dot64(&local[i * dim], &queries[g * dim], dim) / 8);
    for (int i = 0; i < n; ++i) want[i] += std::exp(logits[i]) / sum;
  }
  SearchTask task = zone.Task(queries);
  task.dense = {{{local.data(), dim * sizeof(float), DType::kFloat32}, dense}};
  SearchParams params;
  params.top_k = 60;
  params.candidate_fraction = .05;
  SearchOutput out;
  cpu::SearchOne(task, params, &out);
  for (size_t i = 0; i < out.positions[0].size(); ++i) {
    EXPECT_NEAR(out.scores[0][i] / want[out.positions[0][i]], 1, .08) << i;
  }
}

TEST(ZoneMass, ASearchThatIsNotCappedSaysSo) {
  const int dim = 64;
  const Zone zone(Keys(1024, dim, 5), dim, Plain(dim));
  const std::vector<float> query = Gaussian(dim, 6);
  for (const Method method : {Method::kIndex, Method::kExact}) {
    for (const Scope scope : {Scope::kPerQHead, Scope::kPerKvHead}) {
      SearchParams params = OfMass(1, 4096);  // more than the zone: all of it, which no cap has ended
      params.method = method;
      params.scope = scope;
      SearchOutput out;
      cpu::SearchOne(zone.Task(query), params, &out);
      EXPECT_GT(out.positions[0].size(), 900u);
      EXPECT_NEAR(out.masses[0], 1, 1e-3);
      EXPECT_FALSE(out.capped[0]);
      params.top_k = 3;
      cpu::SearchOne(zone.Task(query), params, &out);
      EXPECT_EQ(out.positions[0].size(), 3u);
      EXPECT_TRUE(out.capped[0]);
      params.mass_p = 0;
      cpu::SearchOne(zone.Task(query), params, &out);
      EXPECT_TRUE(out.masses.empty() && out.capped.empty());
    }
  }
}

TEST(ZoneMass, SamplesLieInTheirWindowsAndAreAllOfAFew) {
  for (const int windows : {1, 2, 31, 32, 33, 127, 128, 129, 1000, 16384}) {
    const MassSample s = MassSampleOf(int64_t{windows} * kWindowTokens);
    EXPECT_LE(s.size(), kMostMassKeys);
    EXPECT_GE(s.size(), static_cast<uint32_t>(std::min(windows * kWindowTokens, 1024)));
    for (uint32_t i = 0; i < s.windows.count; ++i)
      EXPECT_LE(s.first(i) + s.keys(), static_cast<uint32_t>(kWindowTokens));
  }
}

// A term's expectation by hand: noise of variance 3 in scores of variance 10.
TEST(ZoneMass, ATermIsItsExpectationGivenTheScore) {
  MassModel m = MassModelOf(.5f, {3, 1, .75f, 2}, {20, 140, 10.0f / 3}, 10);  // m 2, var 10; mean f^2 1/3
  EXPECT_NEAR(m.shrink, 1 - 9.0 / 3 / 10, 1e-6);
  EXPECT_NEAR(m.spread, .5 * std::sqrt(.7 * 9 + 1), 1e-6);
  EXPECT_NEAR(m.FineLogit(1, 5), 1.5 + .75 * 3.5, 1e-6);
  EXPECT_NEAR(m.fine_growth, .5 / 3, 1e-6);
  SetRest(1000, 110, 100, 30, &m);
  EXPECT_NEAR(m.weight, std::log(100.0), 1e-6);
  EXPECT_EQ(m.shift, .2f);
  const double s = .5 * std::sqrt(.7 * 9 + 1) * 2, logit = .5 * (1 + 2 + .7 * 3), more = std::log(100.0) + .2;
  EXPECT_NEAR(m.Exponent(1, 5, 2), logit + s * s / 2 + more, 1e-5);
  const double bend = std::sqrt(2 * std::log(1000.0)), far = 5 * s;
  EXPECT_NEAR(m.Exponent(1, 5, 10), logit + bend * far - bend * bend / 2 + more, 1e-4);
  EXPECT_EQ(MassModelOf(1, {1, 0, 1, 0}, {0, 0, 0}, 16).shrink, 1.0f);    // every key is its centre
  EXPECT_EQ(MassModelOf(1, {9, 0, 1, 0}, {0, 16, 16}, 16).shrink, 0.0f);  // nothing but noise
}

// One bit each: the factor makes up for what the bit leaves out, so that the error is that of E = x + noise.
TEST(ZoneMass, ErrorSharesOfEqualBitsAreTheUnbiasedEstimates) {
  const double rho = 1 - 2 / M_PI, two_bits = .117482;  // of one bit of a Gaussian, and of two (Max, 1960)
  float fine_shrink = 0;
  const auto shares = ErrorShares({4, 2, 1}, {1, 1, 0}, {2, 2, 0}, &fine_shrink);
  for (int i = 0; i < 2; ++i) {
    EXPECT_NEAR(shares[i].added, rho * (1 - rho), 5e-3);
    EXPECT_EQ(shares[i].unseen, 0);
    EXPECT_NEAR(shares[i].fine, (1 - rho) * (1 - rho) * two_bits, 3e-3);
  }
  EXPECT_EQ(shares[2].added, 0);
  EXPECT_NEAR(shares[2].unseen, (1 - rho) * (1 - rho), 5e-3);
  EXPECT_NEAR(fine_shrink, 1 - two_bits, 1e-4);
}

}  // namespace
}  // namespace seine
