// Quest (bench/methods/quest_pages.h) over a stream: the best pages' keys are the candidates, the last page's all.
#include "bench/drift/candidate_stream.h"
#include "bench/methods/quest_pages.h"

namespace seine::bench {
namespace {

class QuestStream final : public CandidateStream {
 public:
  explicit QuestStream(const StreamOptions& options) : CandidateStream(options), pages_(dim()) {}

  double BytesPerKey() const override { return pages_.BytesPerKey(); }

 protected:
  absl::Status Learn(const float*, int64_t) override {
    pages_.Clear();
    return absl::OkStatus();
  }

  // A page divides kWindowTokens, which the zone grows by.
  absl::Status Add(const float* keys, int64_t, int64_t count) override {
    pages_.Add(keys, count);
    return absl::OkStatus();
  }

  absl::Status Choose(const float* query, int64_t, int64_t wanted, std::vector<int64_t>* rows) override {
    *rows = pages_.Choose(query, wanted, /*cut=*/false);
    return absl::OkStatus();
  }

 private:
  QuestPages pages_;
};

}  // namespace

std::unique_ptr<StreamMethod> MakeQuestStream(const StreamOptions& options) {
  return std::make_unique<QuestStream>(options);
}

}  // namespace seine::bench
