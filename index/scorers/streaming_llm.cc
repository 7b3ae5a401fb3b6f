// StreamingLLM: the first `sink` positions, then the most recent tokens.
#include "index/scorers/scorers.h"

namespace seine::scorers {

namespace {

class StreamingLlm : public Scorer {
 public:
  explicit StreamingLlm(const ScorerConfig& config) : sink_(config.sink) {}

  // Places count from the newest, so that scores stay exact in fp32 where it matters: up to 2^24 tokens back.
  absl::Status Score(const ScoreInput& input, Scores* scores) const override {
    return ForEachHead(input, scores, [&](int h, float* out) {
      const HeadTokens& head = input.heads[h];
      for (int64_t i = 0; i < head.count; ++i) {
        out[i] = head.position(i) < sink_ ? 1.0f : -static_cast<float>(head.count - 1 - i);
      }
      return absl::OkStatus();
    });
  }

 private:
  const int sink_;
};

}  // namespace

absl::StatusOr<ScorerRef> MakeStreamingLlm(const ScorerConfig& config) {
  return std::make_shared<StreamingLlm>(config);
}

}  // namespace seine::scorers
