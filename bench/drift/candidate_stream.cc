// See candidate_stream.h. Exact search, for which every key is a candidate, is here too.
#include "bench/drift/candidate_stream.h"

#include <algorithm>
#include <numeric>

#include "bench/methods/refine.h"

namespace seine::bench {
namespace {

class ExactStream final : public CandidateStream {
 public:
  explicit ExactStream(const StreamOptions& options)
      : CandidateStream(options), bytes_(options.data.head_dim * static_cast<double>(SizeOf(options.data.dtype))) {}
  double BytesPerKey() const override { return bytes_; }

 protected:
  absl::Status Learn(const float*, int64_t) override { return absl::OkStatus(); }
  absl::Status Add(const float*, int64_t, int64_t) override { return absl::OkStatus(); }
  absl::Status Choose(const float*, int64_t held, int64_t, std::vector<int64_t>* rows) override {
    rows->resize(held);
    std::iota(rows->begin(), rows->end(), 0);
    return absl::OkStatus();
  }

 private:
  double bytes_;
};

}  // namespace

absl::Status CandidateStream::Begin(const Head& seen) {
  held_ = 0;
  return Learn(&seen.keys[seen.zone_begin * dim_], seen.num_tokens - seen.zone_begin);
}

absl::Status CandidateStream::Append(const Head& head) {
  const int64_t count = head.num_keys() - held_;
  if (count == 0) return absl::OkStatus();
  if (absl::Status s = Add(&head.keys[(head.zone_begin + held_) * dim_], held_, count); !s.ok()) return s;
  held_ += count;
  return absl::OkStatus();
}

absl::Status CandidateStream::Search(const Head& head, const Ask& ask, int64_t candidates,
                                     std::vector<int32_t>* found) {
  if (absl::Status s = Choose(ask.queries, held_, std::min(candidates, held_), &rows_); !s.ok()) return s;
  *found = BestOf(ask.queries, &head.keys[head.zone_begin * dim_], dim_, rows_, top_k_, &scores_);
  for (int32_t& p : *found) p += static_cast<int32_t>(head.zone_begin);
  return absl::OkStatus();
}

std::unique_ptr<StreamMethod> MakeExactStream(const StreamOptions& options) {
  return std::make_unique<ExactStream>(options);
}

}  // namespace seine::bench
