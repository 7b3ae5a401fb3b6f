// The balanced codec against a plain float64 twin of the method: cells, factors, estimates, sizes, keys at the edge.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "kernels/codecs/balanced/gaussian_quantiser.h"
#include "kernels/codecs/kinds/balanced.h"
#include "tests/kernels/test_util.h"

namespace seine {
namespace {

constexpr int kMostScanned = 256;                      // bits of a key
double TotalOf(int dim) { return dim > 256 ? 1 : 2; }  // bits a coordinate that a key's bytes hold

// A random orthonormal basis (Gram-Schmidt), columns [dim][dim] row-major.
std::vector<float> Basis(int dim, uint64_t seed) {
  std::vector<float> g = Gaussian(static_cast<size_t>(dim) * dim, seed);
  std::vector<std::vector<double>> columns;
  for (int i = 0; i < dim; ++i) {
    std::vector<double> v(dim);
    for (int j = 0; j < dim; ++j) v[j] = g[static_cast<size_t>(j) * dim + i];
    for (int pass = 0; pass < 2; ++pass) {
      for (const auto& u : columns) {
        double dot = 0;
        for (int j = 0; j < dim; ++j) dot += u[j] * v[j];
        for (int j = 0; j < dim; ++j) v[j] -= dot * u[j];
      }
    }
    double norm = 0;
    for (const double x : v) norm += x * x;
    for (double& x : v) x /= std::sqrt(norm);
    columns.push_back(v);
  }
  for (int i = 0; i < dim; ++i) {
    for (int j = 0; j < dim; ++j) g[static_cast<size_t>(j) * dim + i] = static_cast<float>(columns[i][j]);
  }
  return g;
}

// Coordinates whose variances fall by halves every `dim` / 10: keys and queries alike, so the maps are one rotation.
BalancedOptions Options(int dim, double coarse_share = 1, double total_share = 2) {
  BalancedOptions o;
  o.head_dim = dim;
  o.key_map = o.query_map = Basis(dim, 100 + dim);
  for (int i = 0; i < dim; ++i) o.lambda.push_back(static_cast<float>(8 * std::exp2(-10.0 * i / dim)));
  const double distortion[] = {1, .3634, .1175, .03454, .009497, .002499, .00064};
  const auto allocate = [&](int sum, int cap, std::vector<uint8_t> from) {
    for (int left = sum - static_cast<int>(std::accumulate(from.begin(), from.end(), 0)); left > 0; --left) {
      int best = -1;
      double most = -1;
      for (int i = 0; i < dim; ++i) {
        if (from[i] >= cap) continue;
        const double gain = o.lambda[i] * o.lambda[i] * (distortion[from[i]] - distortion[from[i] + 1]);
        if (gain > most) best = i, most = gain;
      }
      ++from[best];
    }
    return from;
  };
  o.coarse_bits = allocate(static_cast<int>(coarse_share * dim), 4, std::vector<uint8_t>(dim, 0));
  const auto count = [&](int width) { return std::count(o.coarse_bits.begin(), o.coarse_bits.end(), width); };
  while (count(3) > count(1)) {  // a nibble must complete each 3
    *std::find(o.coarse_bits.rbegin(), o.coarse_bits.rend(), 3) = 2;
    *std::find(o.coarse_bits.begin(), o.coarse_bits.end(), 0) = 1;
  }
  o.total_bits = allocate(static_cast<int>(total_share * dim), 6, o.coarse_bits);
  return o;
}

// Keys with these variances in the basis, around a mean, and queries alike. [n, dim]
std::vector<float> Shaped(const BalancedOptions& o, int n, uint64_t seed, float mean = 0) {
  const int dim = o.head_dim;
  const std::vector<float> y = Gaussian(static_cast<size_t>(n) * dim, seed), offset = Gaussian(dim, seed + 1, mean);
  std::vector<float> x(y.size());
  for (int k = 0; k < n; ++k) {
    for (int j = 0; j < dim; ++j) {
      double sum = offset[j];
      for (int i = 0; i < dim; ++i) {
        sum +=
            y[static_cast<size_t>(k) * dim + i] * std::sqrt(o.lambda[i]) * o.key_map[static_cast<size_t>(j) * dim + i];
      }
      x[static_cast<size_t>(k) * dim + j] = static_cast<float>(sum);
    }
  }
  return x;
}

// The method in float64, from the centres as stored: estimates of <query, key> by the coarse plane and by the whole
// code.
struct Reference {
  std::vector<double> coarse, fine;
};
Reference Estimate(const BalancedOptions& o, const Zone& zone, const std::vector<float>& query) {
  const int dim = o.head_dim, n = static_cast<int>(zone.keys.size()) / dim;
  std::vector<double> q(dim, 0);
  for (int i = 0; i < dim; ++i) {
    for (int j = 0; j < dim; ++j) q[i] += static_cast<double>(query[j]) * o.query_map[static_cast<size_t>(j) * dim + i];
  }
  Reference r;
  for (int k = 0; k < n; ++k) {
    const ConstCodePlanes& planes = zone.segments[k / zone.segment_keys];
    const int row = k % zone.segment_keys / o.centre_window;
    std::vector<double> x(dim), z(dim, 0);
    double base = 0, s = 0;
    for (int j = 0; j < dim; ++j) {
      const double c = planes.centre[row * dim + j] * static_cast<double>(planes.centre_scale[row]);
      base += c * query[j];
      x[j] = zone.keys[static_cast<size_t>(k) * dim + j] - c;
    }
    for (int i = 0; i < dim; ++i) {
      for (int j = 0; j < dim; ++j) z[i] += x[j] * o.key_map[static_cast<size_t>(j) * dim + i];
      z[i] /= std::sqrt(static_cast<double>(o.lambda[i]));
      s += z[i] * z[i] / dim;
    }
    s = std::sqrt(s);
    double top[2] = {0, 0}, bottom[2] = {0, 0}, dot[2] = {0, 0};
    for (int i = 0; i < dim; ++i) {
      const int total = o.total_bits[i], kept = o.coarse_bits[i];
      if (total == 0 || s == 0) continue;
      z[i] /= s;
      const GaussianQuantiser& g = GaussianQuantiserOf(total);
      int bin = 0;
      while (bin < (1 << (total - 1)) - 1 && std::fabs(z[i]) > g.thresholds[bin]) ++bin;
      for (int part = 0; part < 2; ++part) {
        if (part == 0 && kept == 0) continue;
        const double level = (part == 0 ? g.merged[kept][bin >> (total - kept)] : g.levels[bin]) * (z[i] < 0 ? -1 : 1);
        top[part] += o.lambda[i] * z[i] * z[i];
        bottom[part] += o.lambda[i] * z[i] * level;
        dot[part] += std::sqrt(static_cast<double>(o.lambda[i])) * q[i] * level;
      }
    }
    r.coarse.push_back(base + (bottom[0] > 0 ? s * top[0] / bottom[0] * dot[0] : 0));
    r.fine.push_back(base + (bottom[1] > 0 ? s * top[1] / bottom[1] * dot[1] : 0));
  }
  return r;
}

double Rms(const std::vector<double>& v) {
  double sum = 0;
  for (const double x : v) sum += x * x;
  return std::sqrt(sum / static_cast<double>(v.size()));
}

TEST(GaussianQuantiser, DistortionsAreLloydMaxes) {
  const double want[] = {1, .3634, .1175, .03454, .009497, .002499, .00064};
  for (int bits = 1; bits <= kMaxGaussianBits; ++bits) {
    const GaussianQuantiser& q = GaussianQuantiserOf(bits);
    double error = 0;
    constexpr int kSteps = 400000;
    for (int i = 0; i < kSteps; ++i) {  // of |z| over [0, 8]
      const double u = (i + .5) * 8 / kSteps;
      int bin = 0;
      while (bin < (1 << (bits - 1)) - 1 && u > q.thresholds[bin]) ++bin;
      error += 2 * (u - q.levels[bin]) * (u - q.levels[bin]) * .3989422804 * std::exp(-u * u / 2) * 8 / kSteps;
    }
    EXPECT_NEAR(error / want[bits], 1, .02) << bits;
    EXPECT_FLOAT_EQ(q.merged[bits][0], q.levels[0]);
    EXPECT_NEAR(q.merged[1][0], .7978845608, 1e-6);  // E|z|, whatever the width
  }
}

TEST(BalancedCodec, BytesAKey) {
  const auto bytes = [](int dim, double coarse) {
    return static_cast<double>(CodeBytes(MakeBalancedCodec(Options(dim, coarse))->layout(), 2048)) / 2048;
  };
  EXPECT_LE(bytes(128, 1), 37);
  EXPECT_LE(bytes(128, .5), 37);
  EXPECT_LE(bytes(64, 1), 20);
  EXPECT_LE(bytes(64, .5), 20);
}

TEST(BalancedCodec, EstimatesAreThoseOfTheMethod) {
  for (const int dim : kTestHeadDims) {
    for (const double coarse_share : {.5, 1.0, 2.0}) {
      if (coarse_share * dim > kMostScanned) continue;
      SCOPED_TRACE(testing::Message() << dim << " " << coarse_share);
      const BalancedOptions o = Options(dim, coarse_share, coarse_share == 2 ? 2.5 : TotalOf(dim));
      const Zone zone(Shaped(o, 512, 7, 3), dim, MakeBalancedCodec(o));
      const std::vector<float> query = Shaped(o, 1, 8);
      const Reference want = Estimate(o, zone, query);
      const std::vector<float> fine = Estimates(zone, query);
      PreparedQuery prepared;
      zone.codec->PrepareQuery(query.data(), &prepared);
      std::vector<float> coarse(512), bases(8);
      cpu::ScanArgs args;
      args.planes = zone.segments[0];
      args.layout = &zone.codec->layout();
      args.queries[0].prepared = &prepared;
      args.end = 512;
      float *const to_scores = coarse.data(), *const to_bases = bases.data();
      cpu::ScanScores(args, &to_scores, &to_bases);
      std::vector<double> spread, coarse_error, fine_error, fine_noise, coarse_noise;
      for (int k = 0; k < 512; ++k) {
        const double truth = Dot64(&zone.keys[static_cast<size_t>(k) * dim], query.data(), dim);
        spread.push_back(truth - bases[k / 64] * static_cast<double>(prepared.coarse_step));
        coarse_error.push_back(coarse[k] * static_cast<double>(prepared.coarse_step) - want.coarse[k]);
        fine_error.push_back(fine[k] - want.fine[k]);
        coarse_noise.push_back(want.coarse[k] - truth);
        fine_noise.push_back(want.fine[k] - truth);
      }
      // What int8 tables and weights, and 8-bit factors, add to the method is small beside the method's own noise.
      // Two bits leave so little noise that it shows.
      EXPECT_LT(Rms(coarse_error), (coarse_share == 2 ? .6 : .25) * Rms(coarse_noise));
      EXPECT_LT(Rms(fine_error), (coarse_share == 2 ? .5 : .4) * Rms(fine_noise));
      EXPECT_LT(Rms(fine_noise), .2 * Rms(spread));
      EXPECT_LT(Rms(fine_noise), (coarse_share == 2 ? .9 : .6) * Rms(coarse_noise));
    }
  }
}

// A key a thousand times as long as its window's others: each keeps its own length.
TEST(BalancedCodec, KeysBesideAMuchLongerOneAreEstimatedAsTheMethodSays) {
  constexpr int kLong = 5;
  for (const int dim : kTestHeadDims) {
    SCOPED_TRACE(dim);
    const BalancedOptions o = Options(dim, TotalOf(dim) / 2, TotalOf(dim));
    std::vector<float> keys = Shaped(o, 64, 7);
    for (int j = 0; j < dim; ++j) keys[kLong * dim + j] *= 1000;
    const Zone zone(keys, dim, MakeBalancedCodec(o), 64);
    const std::vector<float> query = Shaped(o, 1, 8);
    const Reference want = Estimate(o, zone, query);
    const std::vector<float> fine = Estimates(zone, query);
    std::vector<double> error, noise;
    for (int k = 0; k < 64; ++k) {
      const float* key = &keys[static_cast<size_t>(k) * dim];
      const double truth = Dot64(key, query.data(), dim);
      if (k == kLong) {  // by lengths: they may stand at any angle
        const double lengths = std::sqrt(Dot64(key, key, dim) * Dot64(query.data(), query.data(), dim));
        EXPECT_LT(std::fabs(fine[k] - want.fine[k]), .003 * lengths);
        continue;
      }
      error.push_back(fine[k] - want.fine[k]);
      noise.push_back(want.fine[k] - truth);
    }
    EXPECT_LT(Rms(error), .7 * Rms(noise));
  }
}

// Widths of 1 to 6 bits, within bytes and across them, and batches of any size.
TEST(BalancedCodec, TheSameCodesAndEstimatesOnEveryTarget) {
  for (const int dim : kTestHeadDims) {
    for (const auto& [coarse_share, total_share] :
         {std::pair(1.0, 2.0), {.5, 2.0}, {2.0, 2.5}, {1.0, 3.75}, {.5, 1.0}}) {
      if (total_share * dim > 8 * kMaxBalancedBytes || coarse_share * dim > kMostScanned) continue;
      SCOPED_TRACE(testing::Message() << dim << " " << coarse_share << " " << total_share);
      const BalancedOptions o = Options(dim, coarse_share, total_share);
      const std::vector<float> keys = Shaped(o, 192, 17, 3), query = Shaped(o, 1, 18);
      std::vector<uint8_t> coarse, fine;
      std::vector<float> estimates;
      OnEveryTarget([&](const std::string&) {
        const Zone zone(keys, dim, MakeBalancedCodec(o), 192);
        const CodeLayout& layout = zone.codec->layout();
        const ConstCodePlanes& p = zone.segments[0];
        const std::vector<uint8_t> got_coarse(p.coarse, p.coarse + 192 * layout.coarse_bytes);
        const std::vector<uint8_t> got_fine(p.fine, p.fine + 192 * layout.fine_bytes);
        const std::vector<float> got = Estimates(zone, query);
        if (estimates.empty()) coarse = got_coarse, fine = got_fine, estimates = got;
        ASSERT_EQ(got_coarse, coarse);
        ASSERT_EQ(got_fine, fine);
        ASSERT_EQ(got, estimates);
        PreparedQuery prepared;
        zone.codec->PrepareQuery(query.data(), &prepared);
        const Candidates all = AllCandidates(zone, prepared);
        const std::vector<uint32_t> chosen(all.index.begin(), all.index.end());
        for (const int count : {1, 15, 17, 33, 63, 65, 130}) {
          std::vector<float> some(count);
          zone.codec->Rerank(prepared, all, chosen.data(), count, zone.segments.data(), zone.segment_keys, some.data());
          ASSERT_EQ(some, std::vector<float>(got.begin(), got.begin() + count));
        }
      });
    }
  }
}

// Short zones are scored whole, long ones against a sampled threshold.
TEST(BalancedCodec, ARecallTargetKeepsTheCandidatesThatItPredicts) {
  for (const int n : {8192, 40960}) {
    SCOPED_TRACE(n);
    constexpr int kDim = 64, kTopK = 20, kQueries = 12;
    const BalancedOptions o = Options(kDim, .5);
    const Zone zone(Shaped(o, n, 27), kDim, MakeBalancedCodec(o), 2048);
    const std::vector<float> queries = Shaped(o, kQueries, 28);
    auto backend = MakeCpuBackend(1);
    double share[3] = {0}, kept[3] = {0};
    const double targets[3] = {.7, .9, .99};
    for (int q = 0; q < kQueries; ++q) {
      const std::vector<float> query(queries.begin() + q * kDim, queries.begin() + (q + 1) * kDim);
      const SearchTask task = zone.Task(query);
      SearchParams params;
      params.top_k = kTopK;
      params.scope = Scope::kPerQHead;
      SearchParams exact = params;
      exact.method = Method::kExact;
      SearchOutput truth;
      ASSERT_EQ(backend->Search(&task, 1, exact, &truth), Outcome::kDone);
      params.with_candidates = true;
      for (int t = 0; t < 3; ++t) {
        params.recall_target = targets[t];
        SearchOutput found;
        ASSERT_EQ(backend->Search(&task, 1, params, &found), Outcome::kDone);
        EXPECT_EQ(found.stats.candidates, static_cast<int64_t>(found.candidates[0].size()));
        kept[t] += static_cast<double>(found.candidates[0].size()) / kQueries;
        for (const int32_t position : truth.positions[0]) {
          share[t] += std::binary_search(found.candidates[0].begin(), found.candidates[0].end(), position);
        }
      }
    }
    for (int t = 0; t < 3; ++t) EXPECT_GT(share[t] / (kTopK * kQueries), targets[t] - .05) << targets[t];
    EXPECT_LT(kept[0], kept[2]);
    EXPECT_LT(kept[2], n / 4);
  }
}

TEST(BalancedCodec, ZeroTinyAndHugeKeysStayFinite) {
  const BalancedOptions o = Options(128);
  const Zone zero(std::vector<float>(128 * 64, 0.0f), 128, MakeBalancedCodec(o));
  for (const float s : Estimates(zero, Gaussian(128, 1))) EXPECT_EQ(s, 0);
  const Zone zone(Shaped(o, 64, 2), 128, MakeBalancedCodec(o));
  for (const float s : Estimates(zone, std::vector<float>(128, 0.0f))) EXPECT_EQ(s, 0);
  for (const float scale : {1e-37f, 1e-20f, 1e15f}) {
    const Zone scaled(Gaussian(128 * 64, 3, scale), 128, MakeBalancedCodec(o));
    for (const float s : Estimates(scaled, Gaussian(128, 4))) EXPECT_TRUE(std::isfinite(s)) << scale;
  }
}

TEST(BalancedCodec, AWindowsCodeDependsOnItsOwnKeysAlone) {
  const BalancedOptions o = Options(128);
  const std::vector<float> keys = Shaped(o, 512, 9, 2);
  const Zone all(keys, 128, MakeBalancedCodec(o)),
      one(std::vector<float>(keys.begin() + 192 * 128, keys.begin() + 256 * 128), 128, MakeBalancedCodec(o));
  const CodeLayout& layout = all.codec->layout();
  EXPECT_EQ(
      memcmp(all.segments[0].coarse + 192 * layout.coarse_bytes, one.segments[0].coarse, 64 * layout.coarse_bytes), 0);
  EXPECT_EQ(memcmp(all.segments[0].fine + 192 * layout.fine_bytes, one.segments[0].fine, 64 * layout.fine_bytes), 0);
}

}  // namespace
}  // namespace seine
