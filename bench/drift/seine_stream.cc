// Seine's index, appended to as a server is: the prefill at once, the decode in windows.
#include <utility>

#include "bench/drift/stream_method.h"
#include "bench/methods/seine_sequence.h"
#include "kernels/codecs/codec_traits.h"

namespace seine::bench {
namespace {

class SeineStream final : public StreamMethod {
 public:
  SeineStream(SeineOptions options, int64_t prefill, Backend* backend)
      : options_(std::move(options)), prefill_(prefill), backend_(backend) {}

  // The balanced code's moments come from the profile of other texts, or from `seen`; rsq learns nothing.
  absl::Status Begin(const Head& seen) override {
    sequence_.reset();
    auto config = ConfigOf(options_, seen, /*query_position=*/prefill_);
    if (!config.ok()) return config.status();
    auto sequence = SeineSequence::Create(*config, backend_);
    if (!sequence.ok()) return sequence.status();
    sequence_ = *std::move(sequence);
    return absl::OkStatus();
  }

  absl::Status Append(const Head& head) override { return sequence_->Append(head); }

  absl::Status Search(const Head& head, const Ask& ask, int64_t candidates, std::vector<int32_t>* found) override {
    SearchParams params = options_.search;
    // Half a key less: the search rounds up.
    params.candidate_fraction = (static_cast<double>(candidates) - .5) / static_cast<double>(head.num_keys());
    Found answer;
    const absl::Status status = sequence_->Search(params, ask, &answer);
    *found = std::move(answer.positions);
    return status;
  }

  double BytesPerKey() const override { return sequence_->info().bytes_per_key; }

 private:
  SeineOptions options_;
  int64_t prefill_;
  Backend* backend_;
  std::unique_ptr<SeineSequence> sequence_;
};

}  // namespace

std::unique_ptr<StreamMethod> MakeSeineStream(const std::string& codec, const StreamOptions& options,
                                              Backend* backend) {
  SeineOptions o;
  o.codec = codec;
  o.seed = options.seed;
  o.search.top_k = options.top_k;
  o.search.scope = Scope::kPerQHead;
  o.profile = options.profile;
  o.rope = options.rope;
  o.data = options.data;
  o.head_dim = options.data.head_dim;
  o.dtype = options.data.dtype;
  return std::make_unique<SeineStream>(std::move(o), options.prefill, backend);
}

}  // namespace seine::bench
