// Everything that a server counts, as Prometheus's families. docs/metrics.md lists them.
#ifndef SEINE_SERVICE_METRICS_COLLECTOR_H_
#define SEINE_SERVICE_METRICS_COLLECTOR_H_

#include <prometheus/collectable.h>
#include <prometheus/metric_family.h>

#include <compare>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "index/counts/counts.h"
#include "index/counts/histogram.h"
#include "index/index.h"
#include "service/core.h"

namespace seine {

// Thread-safe. One of them reads a server at a time.
class Collector final : public prometheus::Collectable {
 public:
  // So many indexes have series of their own: those that were seen first. The others count together, as "other".
  static constexpr size_t kMostNamed = 64;
  static constexpr char kOther[] = "other";

  explicit Collector(const Core& core) : core_(core) {}  // which outlives it

  std::vector<prometheus::MetricFamily> Collect() const override;
  std::string Text() const;  // the same in Prometheus's text format

 private:
  // Figures of an index, or of several together.
  struct IndexReading {
    HistogramReading steps;
    QualityReading quality;
    IndexTotals totals;
    int64_t sequences = 0, tokens = 0;
    int64_t gate_checks = 0, gate_answers = 0, gate_layers = 0;
    double gate_lost = 0;
    std::map<std::string, int64_t> bytes;  // by tier
    void AddGauges(const IndexReading& o);
    void AddCounters(const IndexReading& o);
  };
  struct IndexKey {
    std::string tenant, name;
    auto operator<=>(const IndexKey&) const = default;
  };
  using Readings = std::map<IndexKey, IndexReading>;
  IndexReading Read(const Index& index) const;
  Readings ReadIndexes() const;

  const Core& core_;
  mutable std::mutex mutex_;
  mutable std::map<uint64_t, bool> named_;         // by serial: whether it has series of its own; guarded by mutex_
  mutable std::map<uint64_t, IndexReading> last_;  // of those without; guarded by mutex_
  mutable IndexReading gone_;                      // counters of those without that are deleted; guarded by mutex_
  mutable bool said_ = false;                      // the log tells of the first without; guarded by mutex_
};

}  // namespace seine

#endif  // SEINE_SERVICE_METRICS_COLLECTOR_H_
