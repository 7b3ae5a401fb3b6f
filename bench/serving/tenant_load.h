// What tenants send to a server: paced decode steps, and prefills without a pause.
#ifndef SEINE_BENCH_SERVING_TENANT_LOAD_H_
#define SEINE_BENCH_SERVING_TENANT_LOAD_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "bench/serving/made_tokens.h"
#include "client/client.h"

namespace seine::bench {

struct TenantGeometry {
  int num_kv_heads = 8, group = 4, head_dim = 128;
  int64_t num_keys = 8192;  // of a sequence, before its first step
  int top_k = 100;
};

// Waits for a server that has just been started.
absl::StatusOr<std::unique_ptr<client::Client>> ConnectAs(const std::string& endpoint, const std::string& token);

// What came of a load, over some time.
struct LoadResult {
  std::vector<double> us;  // of each answered step: from written to read
  int64_t sent = 0, refused = 0;
  int64_t tokens = 0;  // prefilled
  double seconds = 0;
  std::string first_error;  // of another kind than a refusal; empty: there was none
  void Add(const LoadResult& o);
};

// One stream of decode steps of a tenant, over a sequence of its own. Not thread-safe.
class StepStream {
 public:
  // Makes an index named `index` where there is none, and a sequence in it that holds geometry.num_keys.
  static absl::StatusOr<std::unique_ptr<StepStream>> Open(const std::string& endpoint, const std::string& token,
                                                          const std::string& index, const TenantGeometry& geometry,
                                                          const Tokens& tokens, uint64_t seed);
  // Steps until `end`: a Poisson process of so many a second, so that no stream keeps in phase with another. A step
  // that comes late is not made up for.
  LoadResult Run(double steps_per_second, std::chrono::steady_clock::time_point end);

 private:
  StepStream(const TenantGeometry& geometry, const Tokens& tokens, uint64_t seed)
      : geometry_(geometry), tokens_(tokens), random_(seed) {}
  absl::Status Step();  // the step's own status where the stream goes on

  const TenantGeometry geometry_;
  const Tokens& tokens_;
  std::unique_ptr<client::Client> client_;
  std::unique_ptr<client::DecodeStream> stream_;
  client::Sequence sequence_;
  client::DecodeStep request_;
  client::DecodeAnswer answer_;
  int64_t position_ = 0;
  std::mt19937_64 random_;
  bool broken_ = false;  // the stream has ended
};

// Makes sequences of `tokens_each` tokens, one after the other, until `end`. Deletes all of them where the server has
// no room for another, and at the end.
LoadResult RunPrefills(const std::string& endpoint, const std::string& token, const std::string& index,
                       const TenantGeometry& geometry, const Tokens& tokens, int64_t tokens_each,
                       std::chrono::steady_clock::time_point end);

}  // namespace seine::bench

#endif  // SEINE_BENCH_SERVING_TENANT_LOAD_H_
