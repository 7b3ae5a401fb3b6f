// Pages as Quest (docs/references.md) has them: 16 keys a page, of which the least and the largest of every coordinate
// are kept. A page's score is an upper bound of its keys': sum_j max(q_j min_j, q_j max_j). The best pages' keys are
// the candidates.
#include <algorithm>

#include "bench/drift/candidate_stream.h"

namespace seine::bench {
namespace {

constexpr int64_t kPageKeys = 16;  // divides kWindowTokens, which the zone grows by

class QuestStream final : public CandidateStream {
 public:
  using CandidateStream::CandidateStream;

  double BytesPerKey() const override { return 2.0 * sizeof(uint16_t) * dim() / kPageKeys; }  // bounds in fp16

 protected:
  absl::Status Learn(const float*, int64_t) override {
    least_.clear();
    most_.clear();
    return absl::OkStatus();
  }

  absl::Status Add(const float* keys, int64_t, int64_t count) override {
    for (int64_t page = 0; page < count / kPageKeys; ++page) {
      const float* first = keys + page * kPageKeys * dim();
      for (int j = 0; j < dim(); ++j) {
        float least = first[j], most = first[j];
        for (int64_t i = 1; i < kPageKeys; ++i) {
          least = std::min(least, first[i * dim() + j]);
          most = std::max(most, first[i * dim() + j]);
        }
        least_.push_back(least);
        most_.push_back(most);
      }
    }
    return absl::OkStatus();
  }

  absl::Status Choose(const float* query, int64_t held, int64_t wanted, std::vector<int64_t>* rows) override {
    const int64_t pages = held / kPageKeys, count = (wanted + kPageKeys - 1) / kPageKeys;
    std::vector<float> bounds(pages);
    for (int64_t page = 0; page < pages; ++page) {
      float bound = 0;
      for (int j = 0; j < dim(); ++j) {
        bound += std::max(query[j] * least_[page * dim() + j], query[j] * most_[page * dim() + j]);
      }
      bounds[page] = bound;
    }
    rows->clear();
    for (int32_t page : TopIndices(bounds.data(), pages, static_cast<int>(count))) {
      for (int64_t i = 0; i < kPageKeys; ++i) rows->push_back(page * kPageKeys + i);
    }
    return absl::OkStatus();
  }

 private:
  std::vector<float> least_, most_;  // [pages, dim]
};

}  // namespace

std::unique_ptr<StreamMethod> MakeQuestStream(const StreamOptions& options) {
  return std::make_unique<QuestStream>(options);
}

}  // namespace seine::bench
