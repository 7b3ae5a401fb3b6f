#include "service/metrics/families.h"

#include <cmath>
#include <limits>

namespace seine {
namespace {

// A bound of so many times 10^-9 s, without what binary fractions add: 2e-06, not 1.9999999999999999e-06.
double Rounded(double seconds) {
  if (!std::isfinite(seconds)) return seconds;
  return std::round(seconds * 1e9) / 1e9;
}

}  // namespace

void Families::Begin(const std::string& name, const std::string& help, prometheus::MetricType type) {
  prometheus::MetricFamily& family = families_.emplace_back();
  family.name = name;
  family.help = help;
  family.type = type;
}

prometheus::ClientMetric& Families::Next(const Labels& labels) {
  prometheus::ClientMetric& metric = families_.back().metric.emplace_back();
  for (const auto& [name, value] : labels) metric.label.push_back({name, value});
  return metric;
}

void Families::Add(const Labels& labels, double value) {
  prometheus::ClientMetric& metric = Next(labels);
  if (families_.back().type == prometheus::MetricType::Counter) {
    metric.counter.value = value;
  } else {
    metric.gauge.value = value;
  }
}

void Families::Add(const Labels& labels, const HistogramReading& reading) {
  prometheus::ClientMetric::Histogram& out = Next(labels).histogram;
  uint64_t below = 0;
  for (int b = 0; b <= kBounds; ++b) {
    below += static_cast<uint64_t>(reading.counts[b]);
    const int in_decade = b % kBucketsADecade;  // 1, 1.25, 1.6, 2, 2.5, 3.15, 4, 5 ...
    if (b < kBounds && in_decade != 0 && in_decade != 3 && in_decade != 7) continue;
    out.bucket.push_back({below, Rounded(reading.bound_seconds(b))});
  }
  out.sample_count = below;
  out.sample_sum = static_cast<double>(reading.sum_ns) * 1e-9;
}

void Families::Add(const Labels& labels, const RatioReading& reading) {
  prometheus::ClientMetric::Histogram& out = Next(labels).histogram;
  uint64_t below = 0;
  for (size_t b = 0; b < kRatioBounds.size(); ++b) {
    below += static_cast<uint64_t>(reading.counts[b]);
    out.bucket.push_back({below, kRatioBounds[b]});
  }
  out.bucket.push_back({below, std::numeric_limits<double>::infinity()});
  out.sample_count = below;
  out.sample_sum = reading.sum();
}

}  // namespace seine
