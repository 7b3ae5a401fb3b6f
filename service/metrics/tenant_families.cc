#include "service/metrics/tenant_families.h"
#include "index/counts/histogram.h"
#include "service/access/access.h"
#include "service/scheduling/executor.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace seine {
namespace {

constexpr size_t kMostTenants = 64;
constexpr char kOtherTenants[] = "other";

struct TenantReading {
  Families::Labels labels;
  HistogramReading waits;
  double yielded_seconds = 0;
};

std::vector<TenantReading> ReadTenants(const Core& core) {
  std::vector<TenantReading> out;
  out.push_back({{}, core.executor.waits(), 0});
  if (core.access == nullptr) return out;
  size_t named = 0;
  TenantReading others{{{"tenant", kOtherTenants}}, {}, 0};
  for (const std::shared_ptr<Tenant>& tenant : core.access->tenants()) {
    const bool has_own = !tenant->name().empty() && tenant->name() != kOtherTenants && named < kMostTenants;
    if (has_own) {
      ++named;
      out.push_back({{{"tenant", tenant->name()}}, {}, 0});
    }
    TenantReading& reading = has_own ? out.back() : tenant->name().empty() ? out.front() : others;
    reading.waits += tenant->work().waits();
    reading.yielded_seconds += static_cast<double>(tenant->work().yielded_ns()) * 1e-9;
  }
  if (others.waits.count() > 0 || others.yielded_seconds > 0) out.push_back(std::move(others));
  return out;
}

}  // namespace

void AddTenants(const Core& core, Families* out) {
  const std::vector<TenantReading> readings = ReadTenants(core);
  out->Histogram("seine_queue_wait_seconds", "Time that heavy calls and handed-on steps have waited for a thread.");
  for (const TenantReading& reading : readings) out->Add(reading.labels, reading.waits);
  out->Counter("seine_yielded_seconds_total", "Time that long work has waited for other tenants' short work.");
  for (const TenantReading& reading : readings) out->Add(reading.labels, reading.yielded_seconds);
}

}  // namespace seine
