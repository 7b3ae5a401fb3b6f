#include "bench/inputs/synthetic.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "absl/strings/str_cat.h"
#include "bench/machine/parallel.h"

namespace seine::bench {
namespace {

constexpr int64_t kChunkTokens = 4096;  // seeded one by one, so that threads do not matter
constexpr double kRopeBase = 500000;

// SplitMix64 (Steele, Lea, Flood 2014) and Box-Muller: fast, and good enough for synthetic data.
class Random {
 public:
  Random(uint64_t seed, uint64_t stream, uint64_t chunk) : state_(seed) {
    for (uint64_t v : {stream, chunk}) state_ = Next() ^ (v * 0xd1342543de82ef95ULL);
  }

  void Normals(float* out, int n) {
    for (int i = 0; i < n; i += 2) {
      const uint64_t bits = Next();
      const float u = (static_cast<float>(bits >> 40) + 1) * 0x1p-24f;  // (0, 1]
      const float angle = static_cast<float>(bits & 0xffffff) * static_cast<float>(2 * std::numbers::pi * 0x1p-24);
      const float radius = std::sqrt(-2 * std::log(u));
      out[i] = radius * std::cos(angle);
      if (i + 1 < n) out[i + 1] = radius * std::sin(angle);
    }
  }

 private:
  uint64_t Next() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15ULL);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    return z ^ (z >> 31);
  }
  uint64_t state_;
};

// z with correlation .2 e^(-s/3) + .1 e^(-s/40) at lag s: white noise and two first-order autoregressions.
class TimeCorrelated {
 public:
  TimeCorrelated(int dim, Random* random) : random_(random), noise_(dim), fast_(dim), slow_(dim) {
    random_->Normals(fast_.data(), dim);
    random_->Normals(slow_.data(), dim);
  }

  void Next(float* z, int dim) {
    Advance(&fast_, std::exp(-1.f / 3));
    Advance(&slow_, std::exp(-1.f / 40));
    random_->Normals(z, dim);
    for (int i = 0; i < dim; ++i) {
      z[i] = std::sqrt(.7f) * z[i] + std::sqrt(.2f) * fast_[i] + std::sqrt(.1f) * slow_[i];
    }
  }

 private:
  void Advance(std::vector<float>* state, float keep) {
    random_->Normals(noise_.data(), static_cast<int>(noise_.size()));
    const float fresh = std::sqrt(1 - keep * keep);
    for (size_t i = 0; i < state->size(); ++i) (*state)[i] = keep * (*state)[i] + fresh * noise_[i];
  }

  Random* random_;
  std::vector<float> noise_, fast_, slow_;
};

// What keys, or queries, are drawn from.
struct Distribution {
  std::vector<float> mean;      // [dim]
  std::vector<float> far_mean;  // [dim], of the same length, orthogonal to `mean`
  std::vector<float> basis;     // [dim][dim]: row i is sqrt(lambda_i) u_i; empty: the identity
};

void ScaleTo(double norm2, float* v, int dim) {
  double sum = 0;
  for (int i = 0; i < dim; ++i) sum += static_cast<double>(v[i]) * v[i];
  for (int i = 0; i < dim; ++i) v[i] = static_cast<float>(v[i] * std::sqrt(norm2 / sum));
}

// Subtracts from v its parts along `count` orthogonal rows.
void MakeOrthogonal(const float* rows, int count, float* v, int dim) {
  for (int r = 0; r < count; ++r) {
    double dot = 0, norm2 = 0;
    for (int i = 0; i < dim; ++i) {
      dot += static_cast<double>(rows[r * dim + i]) * v[i];
      norm2 += static_cast<double>(rows[r * dim + i]) * rows[r * dim + i];
    }
    for (int i = 0; i < dim; ++i) v[i] -= static_cast<float>(dot / norm2 * rows[r * dim + i]);
  }
}

Distribution MakeDistribution(SyntheticKind kind, int dim, double norm2, double mean_share, Random random) {
  Distribution d;
  d.mean.assign(dim, 0);
  if (kind == SyntheticKind::kGaussian) return d;
  random.Normals(d.mean.data(), dim);
  if (kind == SyntheticKind::kRope) {
    for (int i = 0; i < dim; ++i) {
      if (i % (dim / 2) >= dim / 4) d.mean[i] *= std::sqrt(3.f);  // the slower half of the pairs
    }
  }
  ScaleTo(mean_share * norm2, d.mean.data(), dim);
  d.far_mean.resize(dim);
  random.Normals(d.far_mean.data(), dim);
  MakeOrthogonal(d.mean.data(), 1, d.far_mean.data(), dim);
  ScaleTo(mean_share * norm2, d.far_mean.data(), dim);

  double sum = 0;
  for (int i = 0; i < dim; ++i) sum += std::pow(i + .5, -1.1);
  d.basis.resize(static_cast<size_t>(dim) * dim);
  for (int i = 0; i < dim; ++i) {
    float* row = &d.basis[static_cast<size_t>(i) * dim];
    random.Normals(row, dim);
    MakeOrthogonal(d.basis.data(), i, row, dim);
    ScaleTo((1 - mean_share) * norm2 * std::pow(i + .5, -1.1) / sum, row, dim);
  }
  return d;
}

void Mix(const Distribution& d, const float* z, float* out, int dim) {
  if (d.basis.empty()) {
    std::copy(z, z + dim, out);
    return;
  }
  std::fill(out, out + dim, 0.f);
  for (int i = 0; i < dim; ++i) {
    const float* row = &d.basis[static_cast<size_t>(i) * dim];
    for (int j = 0; j < dim; ++j) out[j] += z[i] * row[j];
  }
}

// Rotates consecutive rows from position `first` on; the angle's cosine and sine are carried from row to row.
void ApplyRope(int64_t first, int64_t count, int dim, float* rows) {
  const int half = dim / 2;
  for (int i = 0; i < half; ++i) {
    const double frequency = std::pow(kRopeBase, -2.0 * i / dim);
    double c = std::cos(first * frequency), s = std::sin(first * frequency);
    const double dc = std::cos(frequency), ds = std::sin(frequency);
    for (int64_t r = 0; r < count; ++r) {
      float* row = rows + r * dim;
      const double x = row[i], y = row[i + half];
      row[i] = static_cast<float>(x * c - y * s);
      row[i + half] = static_cast<float>(y * c + x * s);
      const double next = c * dc - s * ds;
      s = s * dc + c * ds;
      c = next;
    }
  }
}

// Rows of positions [first, first + count), made in chunks that share nothing but the distribution.
void FillRows(const SyntheticOptions& o, const Distribution& d, uint64_t stream, int64_t first, int64_t count,
              float* out) {
  const int dim = o.head_dim;
  ParallelFor((count + kChunkTokens - 1) / kChunkTokens, [&](int64_t chunk) {
    Random random(o.seed, stream, static_cast<uint64_t>(chunk));
    TimeCorrelated correlated(dim, &random);
    std::vector<float> z(dim);
    const int64_t begin = chunk * kChunkTokens, end = std::min(count, begin + kChunkTokens);
    for (int64_t r = begin; r < end; ++r) {
      float* row = out + r * dim;
      if (o.kind == SyntheticKind::kRope) {
        correlated.Next(z.data(), dim);
      } else {
        random.Normals(z.data(), dim);
      }
      Mix(d, z.data(), row, dim);
      const double turn = o.kind == SyntheticKind::kDrift
                              ? std::numbers::pi * static_cast<double>(first + r) / static_cast<double>(o.num_keys)
                              : 0;
      const float near = static_cast<float>(std::cos(turn)), far = static_cast<float>(std::sin(turn));
      for (int j = 0; j < dim; ++j) row[j] += near * d.mean[j] + (far != 0 ? far * d.far_mean[j] : 0);
    }
    if (o.kind == SyntheticKind::kRope) ApplyRope(first + begin, end - begin, dim, out + begin * dim);
  });
}

}  // namespace

absl::StatusOr<SyntheticKind> SyntheticKindOf(const std::string& name) {
  if (name == "gaussian") return SyntheticKind::kGaussian;
  if (name == "anisotropic") return SyntheticKind::kAnisotropic;
  if (name == "rope") return SyntheticKind::kRope;
  if (name == "drift") return SyntheticKind::kDrift;
  return absl::InvalidArgumentError(
      absl::StrCat("--synthetic: \"", name, "\" is none of gaussian, anisotropic, rope, drift"));
}

SyntheticHead MakeSynthetic(const SyntheticOptions& o) {
  const Distribution keys = MakeDistribution(o.kind, o.head_dim, 4.7 * o.head_dim, .8, Random(o.seed, 1, 0));
  SyntheticOptions still = o;  // queries do not drift
  if (still.kind == SyntheticKind::kDrift) still.kind = SyntheticKind::kAnisotropic;
  const Distribution queries = MakeDistribution(still.kind, o.head_dim, 3.4 * o.head_dim, .76, Random(o.seed, 2, 0));
  SyntheticHead head;
  head.keys.resize(static_cast<size_t>(o.num_keys) * o.head_dim);
  head.queries.resize(static_cast<size_t>(o.num_queries) * o.head_dim);
  FillRows(o, keys, 3, 0, o.num_keys, head.keys.data());
  FillRows(still, queries, 4, o.num_keys, o.num_queries, head.queries.data());
  return head;
}

}  // namespace seine::bench
