// For m = 8 the density of |u| on [0, 1] is proportional to (1 - u^2)^{5/2}, so with u = sin v both integrals have
// closed forms: mass(u) is the integral of cos^6 v, and the first moment is -(1 - u^2)^{7/2} / 7.
#include "kernels/codecs/rsq/lloyd_max.h"

#include <cmath>

namespace seine {
namespace {

// Integral of cos^6 from 0 to asin(u).
double Mass(double u) {
  const double v = std::asin(u);
  return (5.0 / 16) * v + (15.0 / 64) * std::sin(2 * v) + (3.0 / 64) * std::sin(4 * v) + std::sin(6 * v) / 192;
}

// Integral of u (1 - u^2)^{5/2} from 0 to u.
double Moment(double u) { return (1 - std::pow(1 - u * u, 3.5)) / 7; }

MagnitudeQuantiser Solve() {
  double edge[9], level[8];
  for (int t = 0; t <= 8; ++t) edge[t] = t / 8.0;
  for (double change = 1; change > 1e-14;) {
    for (int t = 0; t < 8; ++t) {
      level[t] = (Moment(edge[t + 1]) - Moment(edge[t])) / (Mass(edge[t + 1]) - Mass(edge[t]));
    }
    change = 0;
    for (int t = 1; t < 8; ++t) {
      const double next = (level[t - 1] + level[t]) / 2;
      change = std::fmax(change, std::fabs(next - edge[t]));
      edge[t] = next;
    }
  }
  MagnitudeQuantiser q;
  for (int t = 0; t < 7; ++t) q.thresholds[t] = static_cast<float>(edge[t + 1]);
  for (int t = 0; t < 8; ++t) q.levels[t] = static_cast<float>(level[t]);
  return q;
}

}  // namespace

const MagnitudeQuantiser& RsqQuantiser() {
  static const MagnitudeQuantiser quantiser = Solve();
  return quantiser;
}

}  // namespace seine
