// One layer and KV head in an index of Seine's: what the bench's methods of ours append to and ask.
#ifndef SEINE_BENCH_METHODS_SEINE_SEQUENCE_H_
#define SEINE_BENCH_METHODS_SEINE_SEQUENCE_H_

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "bench/methods/method.h"
#include "index/index.h"

namespace seine::bench {

// The configuration of an index whose zone is exactly the head's, of sink and local tokens as the head has them. The
// balanced code expects queries from `query_position` on. Errors name --profile or a field.
absl::StatusOr<IndexConfig> ConfigOf(const SeineOptions& options, const Head& head, int64_t query_position);

// Not thread-safe.
class SeineSequence {
 public:
  // `backend` must outlive it.
  static absl::StatusOr<std::unique_ptr<SeineSequence>> Create(const IndexConfig& config, Backend* backend);

  // Appends what `head` has beyond what was appended. INTERNAL where the index's zone is not the head's then.
  absl::Status Append(const Head& head);

  // `params` as they are.
  absl::Status Search(const SearchParams& params, const Ask& ask, Found* found) const;

  const HeadInfo& info() const { return info_; }  // as of the last Append

 private:
  SeineSequence() = default;

  std::unique_ptr<Index> index_;
  SequenceHandle sequence_;
  Geometry geometry_;
  int64_t length_ = 0;
  HeadInfo info_;
};

}  // namespace seine::bench

#endif  // SEINE_BENCH_METHODS_SEINE_SEQUENCE_H_
