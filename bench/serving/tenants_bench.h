// Tenants of one server, side by side: what a steady one notices of one that sends four times what it may, and of one
// that prefills without a pause.
//
// Rounds repeat five phases, so that a neighbour's noise on the machine meets all of them: the steady tenant alone; the
// loud tenant alone, at just what it may (its peak); the steady one beside the loud one at a multiple of that; prefills
// alone; the steady one beside prefills.
#ifndef SEINE_BENCH_SERVING_TENANTS_BENCH_H_
#define SEINE_BENCH_SERVING_TENANTS_BENCH_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "bench/serving/tenant_load.h"

namespace seine::bench {

struct TenantsOptions {
  static constexpr int64_t kInFlightBytes = int64_t{64} << 20;  // the server's limit

  std::string program;  // seined
  int threads = 0;      // of the server; 0: one a core
  TenantGeometry geometry;
  int64_t memory_limit_bytes = int64_t{512} << 20;
  double steady_steps_per_s = 50;
  int64_t allowed_steps_per_s = 200;  // the loud tenant's quota
  double overload = 4;                // times that it sends so many
  int loud_streams = 4;
  int prefill_streams = 2;
  int64_t prefill_tokens = 8192;  // of a sequence
  double phase_seconds = 3;
  int rounds = 3;
  uint64_t seed = 1;
};

struct TenantsResult {
  LoadResult alone, beside_loud, beside_prefill;  // the steady tenant's
  LoadResult peak, loud, prefill_alone, prefill;  // the neighbours'
  double peak_seconds = 0, loud_seconds = 0, prefill_alone_seconds = 0, prefill_seconds = 0;
  int64_t resident_at_start_bytes = 0, resident_peak_bytes = 0;  // of the server
  int64_t processors = 0;
};

absl::StatusOr<TenantsResult> MeasureTenants(const TenantsOptions& options);

}  // namespace seine::bench

#endif  // SEINE_BENCH_SERVING_TENANTS_BENCH_H_
