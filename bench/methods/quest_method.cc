// Quest (quest_pages.h) as a bench method, at stated numbers of candidates: whole pages in the order of their bounds,
// the last one cut. The best of them by exact scores are the answer, as of every peer.
#include "absl/strings/str_cat.h"
#include "bench/methods/method.h"
#include "bench/methods/quest_pages.h"
#include "bench/methods/refine.h"

namespace seine::bench {
namespace {

class QuestMethod final : public Method {
 public:
  QuestMethod(const DatasetInfo& data, int page_keys, int top_k, const std::vector<int64_t>& candidates)
      : dim_(data.head_dim), row_bytes_(RowBytes(data)), top_k_(top_k), pages_(data.head_dim, page_keys) {
    for (const int64_t count : candidates) {
      Line& line = lines_.emplace_back();
      line.name = absl::StrCat("quest, pages of ", page_keys);
      line.candidates = count;
    }
  }

  const std::vector<Line>& lines() const override { return lines_; }
  double BytesPerKey(const Line&) const override { return pages_.BytesPerKey(); }
  double ScanBytesPerKey(const Line&) const override { return pages_.BytesPerKey(); }
  double BytesRead(const Line&, int64_t num_keys, const Found& found) const override {
    return pages_.BytesPerKey() * static_cast<double>(num_keys) +
           row_bytes_ * static_cast<double>(found.candidates.size());
  }
  void Release() override { pages_.Clear(); }

  absl::Status Build(const Head& head) override {
    Release();
    head_ = &head;
    pages_.Add(&head.keys[head.zone_begin * dim_], head.num_keys());  // a multiple of 64 keys
    return absl::OkStatus();
  }

  absl::Status Search(const Line& line, const Ask& ask, bool with_candidates, Found* found) override {
    const auto begin = static_cast<int32_t>(head_->zone_begin);
    ids_ = pages_.Choose(ask.queries, line.candidates, /*cut=*/true);
    found->stats = {};
    found->candidates.clear();
    for (const int64_t id : ids_) {
      if (with_candidates) found->candidates.push_back(static_cast<int32_t>(id) + begin);
    }
    found->positions = BestOf(ask.queries, &head_->keys[head_->zone_begin * dim_], dim_, ids_, top_k_, &scores_);
    for (int32_t& p : found->positions) p += begin;
    return absl::OkStatus();
  }

 private:
  int dim_;
  double row_bytes_;
  int top_k_;
  QuestPages pages_;
  std::vector<Line> lines_;
  const Head* head_ = nullptr;
  std::vector<int64_t> ids_;
  std::vector<float> scores_;
};

}  // namespace

std::unique_ptr<Method> MakeQuestMethod(const DatasetInfo& data, int page_keys, int top_k,
                                        const std::vector<int64_t>& candidates) {
  return std::make_unique<QuestMethod>(data, page_keys, top_k, candidates);
}

}  // namespace seine::bench
