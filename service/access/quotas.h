// Quotas of tenants, as their file lists them:
//
//   acme: {memory: 4GiB, sequences: 1000, indexes: 8, steps_per_second: 5000, calls: 64}
//   beta: {memory: 512MiB}
//
// A quota left out, or 0, is no limit; a tenant that the file does not name has no quotas.
#ifndef SEINE_SERVICE_ACCESS_QUOTAS_H_
#define SEINE_SERVICE_ACCESS_QUOTAS_H_

#include <functional>
#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "service/access/tenant.h"

namespace seine {

using QuotasByTenant = std::map<std::string, Quotas, std::less<>>;

// INVALID_ARGUMENT "PATH: acme.memory: what", on one line.
absl::StatusOr<QuotasByTenant> LoadQuotas(const std::string& path);

}  // namespace seine

#endif  // SEINE_SERVICE_ACCESS_QUOTAS_H_
