// Lloyd's iteration on the half line: levels are conditional means, thresholds their midpoints.
#include "kernels/codecs/balanced/gaussian_quantiser.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace seine {
namespace {

double Density(double x) { return 0.3989422804014327 * std::exp(-x * x / 2); }
double Above(double x) { return std::erfc(x * 0.7071067811865476) / 2; }  // P(z > x)

GaussianQuantiser Solve(int bits) {
  const int n = 1 << (bits - 1);
  std::vector<double> edge(n + 1), level(n), mass(n);
  edge[n] = 40;
  for (int t = 0; t < n; ++t) edge[t] = 3.0 * t / n;
  for (double change = 1; change > 1e-13;) {
    change = 0;
    for (int t = 0; t < n; ++t) {
      mass[t] = Above(edge[t]) - Above(edge[t + 1]);
      level[t] = (Density(edge[t]) - Density(edge[t + 1])) / mass[t];
    }
    for (int t = 1; t < n; ++t) {
      const double next = (level[t - 1] + level[t]) / 2;
      change = std::fmax(change, std::fabs(next - edge[t]));
      edge[t] = next;
    }
  }
  GaussianQuantiser q;
  q.bits = bits;
  for (int t = 0; t + 1 < n; ++t) q.thresholds[t] = static_cast<float>(edge[t + 1]);
  for (int t = 0; t < n; ++t) q.levels[t] = static_cast<float>(level[t]);
  q.distortion[0] = 1;
  for (int kept = 1; kept <= bits; ++kept) {
    const int cells = 1 << (bits - kept);
    double explained = 0;
    for (int m = 0; m < n / cells; ++m) {
      double weighted = 0, all = 0;
      for (int t = m * cells; t < (m + 1) * cells; ++t) weighted += level[t] * mass[t], all += mass[t];
      q.merged[kept][m] = static_cast<float>(weighted / all);
      explained += 2 * weighted * weighted / all;
    }
    q.distortion[kept] = static_cast<float>(1 - explained);
  }
  return q;
}

}  // namespace

const GaussianQuantiser& GaussianQuantiserOf(int bits) {
  static const std::array<GaussianQuantiser, kMaxGaussianBits> kAll = [] {
    std::array<GaussianQuantiser, kMaxGaussianBits> all;
    for (int b = 1; b <= kMaxGaussianBits; ++b) all[b - 1] = Solve(b);
    return all;
  }();
  return kAll[bits - 1];
}

const GaussianTables& AllGaussianTables() {
  static const GaussianTables kAll = [] {
    GaussianTables all = {};
    const float largest = GaussianQuantiserOf(kMaxGaussianBits).levels[31];
    for (int bits = 1; bits <= kMaxGaussianBits; ++bits) {
      const GaussianQuantiser& q = GaussianQuantiserOf(bits);
      std::copy(q.thresholds.begin(), q.thresholds.end(), all.thresholds[bits]);
      std::copy(q.levels.begin(), q.levels.end(), all.levels[bits]);
      std::copy(q.distortion.begin(), q.distortion.end(), all.distortion[bits]);
      for (int kept = 1; kept <= bits; ++kept) {
        std::copy(q.merged[kept].begin(), q.merged[kept].end(), all.merged[bits][kept]);
      }
      const int half = 1 << (bits - 1);
      for (int m = 0; m < half; ++m) {
        all.levels8[half - 1 + m] = static_cast<uint8_t>(std::lround(q.levels[m] * 127.0f / largest));
      }
    }
    return all;
  }();
  return kAll;
}

}  // namespace seine
