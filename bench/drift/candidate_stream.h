// What the peers share: a method names candidates, and the best of them by exact scores are its answer.
#ifndef SEINE_BENCH_DRIFT_CANDIDATE_STREAM_H_
#define SEINE_BENCH_DRIFT_CANDIDATE_STREAM_H_

#include <cstdint>
#include <vector>

#include "bench/drift/stream_method.h"

namespace seine::bench {

class CandidateStream : public StreamMethod {
 public:
  explicit CandidateStream(const StreamOptions& options) : dim_(options.data.head_dim), top_k_(options.top_k) {}

  absl::Status Begin(const Head& seen) final;
  absl::Status Append(const Head& head) final;
  absl::Status Search(const Head& head, const Ask& ask, int64_t candidates, std::vector<int32_t>* found) final;

 protected:
  // Learns from `count` keys [count, dim].
  virtual absl::Status Learn(const float* keys, int64_t count) = 0;
  // Takes `count` more keys of the zone, which held `held` before.
  virtual absl::Status Add(const float* keys, int64_t held, int64_t count) = 0;
  // Rows of the zone in ascending order, about `wanted` of its `held`.
  virtual absl::Status Choose(const float* query, int64_t held, int64_t wanted, std::vector<int64_t>* rows) = 0;

  int dim() const { return dim_; }

 private:
  int dim_, top_k_;
  int64_t held_ = 0;  // keys of the zone taken
  std::vector<int64_t> rows_;
  std::vector<float> scores_;
};

}  // namespace seine::bench

#endif  // SEINE_BENCH_DRIFT_CANDIDATE_STREAM_H_
