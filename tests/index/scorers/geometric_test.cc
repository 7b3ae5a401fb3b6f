// The scorers that look at keys alone, against the papers' formulas in float64, on every SIMD target.
#include <algorithm>
#include <cmath>
#include <memory>

#include "kernels/cpu/targets.h"
#include "profile/filters.h"
#include "tests/index/scorers/synthetic_layer.h"

namespace seine {
namespace {

using testing::MadeUpLayer;
using testing::ScoresOf;
using Vector = std::vector<double>;

class GeometricScorers : public ::testing::Test {
 protected:
  GeometricScorers() : backend_(MakeCpuBackend(1)) {}
  ~GeometricScorers() override { cpu::ForceTarget(""); }

  // Scores of every target are the same bits, and near to want(head, i).
  template <typename Want>
  void Expect(const ScorerConfig& config, MadeUpLayer* layer, double tolerance, Want want) {
    Scores first;
    for (const std::string& target : cpu::SupportedTargets()) {
      ASSERT_TRUE(cpu::ForceTarget(target));
      const Scores scores = ScoresOf(config, layer->Input(backend_.get()));
      if (first.empty()) first = scores;
      EXPECT_EQ(scores, first) << target;
    }
    for (size_t h = 0; h < first.size(); ++h) {
      for (int i = 0; i < layer->n; ++i)
        ASSERT_NEAR(first[h][i], want(h, i), tolerance) << "head " << h << " key " << i;
    }
  }

  std::unique_ptr<Backend> backend_;
};

Vector Row(const MadeUpLayer& l, int h, int i) { return {l.Key(h, i), l.Key(h, i) + l.dim}; }
double Dot(const Vector& a, const Vector& b) {
  double sum = 0;
  for (size_t j = 0; j < a.size(); ++j) sum += a[j] * b[j];
  return sum;
}
Vector Unit(Vector v) {
  const double norm = std::sqrt(Dot(v, v));
  for (double& x : v) x /= norm;
  return v;
}
Vector Minus(Vector a, const Vector& b) {
  for (size_t j = 0; j < a.size(); ++j) a[j] -= b[j];
  return a;
}
double Length(const Vector& v) { return std::sqrt(Dot(v, v)); }
double Cosine(const Vector& a, const Vector& b) { return Dot(a, b) / Length(a) / Length(b); }

// Mean of map(key) over tokens [begin, end).
template <typename Map>
Vector Mean(const MadeUpLayer& l, int h, int begin, int end, Map map) {
  Vector mean(l.dim);
  for (int i = begin; i < end; ++i) {
    const Vector x = map(Row(l, h, i));
    for (int j = 0; j < l.dim; ++j) mean[j] += x[j] / (end - begin);
  }
  return mean;
}
Vector Same(Vector v) { return v; }

TEST_F(GeometricScorers, KeyDiffWithEachAnchorAndSimilarity) {
  MadeUpLayer l(2, 1, 64, 150, 0);
  for (const Anchor anchor : {Anchor::kUnitMean, Anchor::kMean, Anchor::kMedian}) {
    std::vector<Vector> anchors;
    for (int h = 0; h < 2; ++h) {
      if (anchor == Anchor::kUnitMean) anchors.push_back(Mean(l, h, 0, l.n, Unit));
      if (anchor == Anchor::kMean) anchors.push_back(Mean(l, h, 0, l.n, Same));
      if (anchor != Anchor::kMedian) continue;
      Vector median(l.dim);
      for (int j = 0; j < l.dim; ++j) {
        std::vector<float> column;
        for (int i = 0; i < l.n; ++i) column.push_back(l.Key(h, i)[j]);
        std::sort(column.begin(), column.end());
        median[j] = column[(l.n - 1) / 2];
      }
      anchors.push_back(median);
    }
    ScorerConfig config;
    config.anchor = anchor;
    Expect(config, &l, 2e-6, [&](int h, int i) { return -Cosine(Row(l, h, i), anchors[h]); });
    config.similarity = Similarity::kDot;
    Expect(config, &l, 2e-5, [&](int h, int i) { return -Dot(Row(l, h, i), anchors[h]); });
    config.similarity = Similarity::kEuclid;
    Expect(config, &l, 1e-5, [&](int h, int i) { return Length(Minus(Row(l, h, i), anchors[h])); });
  }
}

// Equation 7, and that equation 8 ranks as it does (appendix C.2).
TEST_F(GeometricScorers, KeyDiffPairwiseIsTheMeanCosineAndRanksAsTheAnchorDoes) {
  MadeUpLayer l(1, 1, 64, 120, 0);
  ScorerConfig config;
  config.anchor = Anchor::kPairwise;
  Expect(config, &l, 2e-6, [&](int h, int i) {
    double sum = 0;
    for (int j = 0; j < l.n; ++j) sum += Cosine(Row(l, h, i), Row(l, h, j));
    return -sum / l.n;
  });
  const Scores pairwise = ScoresOf(config, l.Input(backend_.get()));
  const Scores anchored = ScoresOf("keydiff", l.Input(backend_.get()));
  const auto best = [&](const std::vector<float>& s) { return std::max_element(s.begin(), s.end()) - s.begin(); };
  EXPECT_EQ(best(pairwise[0]), best(anchored[0]));
}

TEST_F(GeometricScorers, ManifoldKvWithEachMetric) {
  MadeUpLayer l(2, 1, 80, 100, 0);
  for (const Metric metric : {Metric::kL2, Metric::kL1, Metric::kLinf}) {
    ScorerConfig config;
    config.name = "manifoldkv";
    config.metric = metric;
    Expect(config, &l, 1e-4, [&](int h, int i) {
      const Vector away = Minus(Row(l, h, i), Mean(l, h, 0, l.n, Same));
      double l1 = 0, largest = 0;
      for (const double x : away) l1 += std::fabs(x), largest = std::max(largest, std::fabs(x));
      return metric == Metric::kL2 ? Length(away) : metric == Metric::kL1 ? l1 : largest;
    });
  }
}

TEST_F(GeometricScorers, WindowedManifoldKvByEachWindowsOwnMean) {
  MadeUpLayer l(2, 1, 64, 150, 0);
  ScorerConfig config;
  config.name = "windowed_manifoldkv";
  for (const int window : {1, 40, 64, 150, 4096}) {
    config.window = window;
    Expect(config, &l, 1e-5, [&](int h, int i) {
      const int begin = i / window * window;
      return Length(Minus(Row(l, h, i), Mean(l, h, begin, std::min(begin + window, l.n), Same)));
    });
  }
}

TEST_F(GeometricScorers, NormalizedHybridAndKNorm) {
  MadeUpLayer l(2, 1, 96, 90, 0);
  ScorerConfig config;
  config.name = "normalized";
  Expect(config, &l, 2e-6, [&](int h, int i) { return Length(Minus(Unit(Row(l, h, i)), Mean(l, h, 0, l.n, Unit))); });
  config.name = "knorm";
  Expect(config, &l, 1e-5, [&](int h, int i) { return -Length(Row(l, h, i)); });
  config.name = "hybrid";
  for (const double lambda : {0.0, .3, 1.0}) {
    config.lambda = lambda;
    std::vector<Vector> want(2, Vector(l.n));
    for (int h = 0; h < 2; ++h) {
      Vector cosines, distances;
      const Vector unit = Mean(l, h, 0, l.n, Unit), mean = Mean(l, h, 0, l.n, Same);
      for (int i = 0; i < l.n; ++i) {
        cosines.push_back(-Cosine(Row(l, h, i), unit));
        distances.push_back(Length(Minus(Row(l, h, i), mean)));
      }
      const auto scaled = [](const Vector& x, int i) {
        const auto [low, high] = std::minmax_element(x.begin(), x.end());
        return (x[i] - *low) / (*high - *low);
      };
      for (int i = 0; i < l.n; ++i) want[h][i] = (1 - lambda) * scaled(cosines, i) + lambda * scaled(distances, i);
    }
    Expect(config, &l, 1e-5, [&](int h, int i) { return want[h][i]; });
  }
}

// ManifoldKV, theorem A.1: keys e1 + small, and one outlier 100 e1 on the axis itself.
TEST_F(GeometricScorers, ARadialOutlierIsEvictedByCosineAndKeptByDistance) {
  MadeUpLayer l(1, 1, 64, 101, 0);
  for (int i = 0; i < l.n; ++i) {
    float* key = l.keys[0].data() + i * l.dim;
    for (int j = 0; j < l.dim; ++j) key[j] = j == 0 ? 1.0f : .05f * (j % 2 == 0 ? 1 : -1) * ((i + j) % 3 - 1);
  }
  constexpr int kOutlier = 60;
  std::fill_n(l.keys[0].begin() + kOutlier * l.dim, l.dim, 0.0f);
  l.keys[0][kOutlier * l.dim] = 100;
  const auto rank = [&](const char* name) {
    const Scores scores = ScoresOf(name, l.Input(backend_.get()));
    return std::count_if(scores[0].begin(), scores[0].end(), [&](float s) { return s > scores[0][kOutlier]; });
  };
  EXPECT_EQ(rank("keydiff"), l.n - 1);
  EXPECT_EQ(rank("manifoldkv"), 0);
}

// Section 3.2: topics of 4,096 tokens each, their centres far apart. Within a topic a few keys stand out; the one mean
// of 64K tokens is far from everything and sees no difference, the windows' own means do.
TEST_F(GeometricScorers, WindowsStillDiscriminateWhereOneMeanIsDiluted) {
  constexpr int kWindow = 4096, kTopics = 16;
  MadeUpLayer l(1, 1, 64, kWindow * kTopics, 0);
  std::vector<bool> stands_out(l.n);
  for (int i = 0; i < l.n; ++i) {
    float* key = l.keys[0].data() + static_cast<size_t>(i) * l.dim;
    stands_out[i] = i % 64 == 5;
    for (int j = 0; j < l.dim; ++j) key[j] = key[j] * (stands_out[i] ? .6f : .2f) + (j == i / kWindow ? 40.0f : 0.0f);
  }
  const auto found = [&](const char* name) {
    std::vector<float> scores = ScoresOf(name, l.Input(backend_.get()))[0];
    std::vector<float> sorted = scores;
    const auto cut = sorted.begin() + l.n / 64;
    std::nth_element(sorted.begin(), cut, sorted.end(), std::greater<float>());
    int hits = 0;
    for (int i = 0; i < l.n; ++i) hits += stands_out[i] && scores[i] > *cut;
    return static_cast<double>(hits) / (l.n / 64.0);
  };
  EXPECT_GT(found("windowed_manifoldkv"), .95);
  EXPECT_LT(found("manifoldkv"), .6);
}

TEST_F(GeometricScorers, QFiltersProjectOnTheGroupsDirection) {
  MadeUpLayer l(2, 3, 64, 80, 200);
  const Filters filters = FiltersFromQueries(l.queries.data(), 200, 2, 3, 64);
  ScoreInput input = l.Input(backend_.get());
  input.filters = filters.data();
  const Scores scores = ScoresOf("qfilters", input);
  for (int h = 0; h < 2; ++h) {
    // Power iteration on each query head's moment; the sign such that most queries project positive.
    Vector direction(l.dim);
    for (int g = 0; g < 3; ++g) {
      Vector v(l.dim, 1.0);
      for (int step = 0; step < 3000; ++step) {
        Vector next(l.dim);
        for (int q = 0; q < 200; ++q) {
          const Vector query(l.Query(q, h, g), l.Query(q, h, g) + l.dim);
          const double p = Dot(query, v);
          for (int j = 0; j < l.dim; ++j) next[j] += p * query[j];
        }
        v = Unit(next);
      }
      double projected = 0;
      for (int q = 0; q < 200; ++q) projected += Dot(Vector(l.Query(q, h, g), l.Query(q, h, g) + l.dim), v);
      for (int j = 0; j < l.dim; ++j) direction[j] += v[j] * (projected > 0 ? 1 : -1) / 3;
    }
    for (int i = 0; i < l.n; ++i) EXPECT_NEAR(scores[h][i], Dot(Row(l, h, i), direction), 1e-3);
  }
}

TEST_F(GeometricScorers, RunningSumsGiveTheSameBitsInAnySplit) {
  MadeUpLayer l(1, 1, 64, 500, 0);
  for (const char* name : {"keydiff", "manifoldkv", "windowed_manifoldkv", "hybrid", "normalized"}) {
    ScorerConfig config;
    config.name = name;
    if (config.name == "windowed_manifoldkv") config.window = 300;  // sums' groups of 256 and their rests
    const Scores recomputed = ScoresOf(config, l.Input(backend_.get()));
    KeySums sums((*MakeScorer(config))->sums(), l.dim);
    for (int first = 0, count = 1; first < l.n; first += count, count = count * 2 + 1) {
      sums.Add({l.Key(0, first), l.dim * sizeof(float), DType::kFloat32}, std::min(count, l.n - first));
    }
    ScoreInput input = l.Input(backend_.get());
    input.heads[0].sums = &sums;
    EXPECT_EQ(ScoresOf(config, input), recomputed) << name;
  }
}

TEST_F(GeometricScorers, NoTokensNoScores) {
  MadeUpLayer l(2, 1, 64, 0, 0);
  for (const char* name :
       {"keydiff", "manifoldkv", "windowed_manifoldkv", "hybrid", "normalized", "knorm", "streaming_llm"}) {
    EXPECT_EQ(ScoresOf(name, l.Input(backend_.get())), Scores(2)) << name;
  }
}

}  // namespace
}  // namespace seine
