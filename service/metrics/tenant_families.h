// What tenants wait for one another, as Prometheus's families.
#ifndef SEINE_SERVICE_METRICS_TENANT_FAMILIES_H_
#define SEINE_SERVICE_METRICS_TENANT_FAMILIES_H_

#include "service/core.h"
#include "service/metrics/families.h"

namespace seine {

// The first 64 tenants that come have series of their own, all others count together as "other". Work of no tenant has
// no label.
void AddTenants(const Core& core, Families* out);

}  // namespace seine

#endif  // SEINE_SERVICE_METRICS_TENANT_FAMILIES_H_
