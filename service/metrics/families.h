// Builds Prometheus's families from plain numbers.
#ifndef SEINE_SERVICE_METRICS_FAMILIES_H_
#define SEINE_SERVICE_METRICS_FAMILIES_H_

#include <prometheus/metric_family.h>

#include <string>
#include <utility>
#include <vector>

#include "index/counts/histogram.h"
#include "index/counts/ratio_histogram.h"

namespace seine {

// Not thread-safe.
class Families {
 public:
  using Labels = std::vector<std::pair<std::string, std::string>>;

  // Begins a family; what is added next belongs to it.
  void Counter(const std::string& name, const std::string& help) { Begin(name, help, prometheus::MetricType::Counter); }
  void Gauge(const std::string& name, const std::string& help) { Begin(name, help, prometheus::MetricType::Gauge); }
  void Histogram(const std::string& name, const std::string& help) {
    Begin(name, help, prometheus::MetricType::Histogram);
  }
  void Add(const Labels& labels, double value);
  // Buckets 1, 2 and 5 of each decade, in seconds.
  void Add(const Labels& labels, const HistogramReading& reading);
  void Add(const Labels& labels, const RatioReading& reading);  // every bucket

  std::vector<prometheus::MetricFamily> Take() { return std::move(families_); }

 private:
  void Begin(const std::string& name, const std::string& help, prometheus::MetricType type);
  prometheus::ClientMetric& Next(const Labels& labels);

  std::vector<prometheus::MetricFamily> families_;
};

}  // namespace seine

#endif  // SEINE_SERVICE_METRICS_FAMILIES_H_
