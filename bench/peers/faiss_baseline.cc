// FAISS as bench methods (faiss_specs.h). Trained on the very keys that are searched; the best beta * n by its codes
// are scored exactly in fp32 and the best top_k of them are the answer, as Seine's refine does.
#include <faiss/Index.h>

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "bench/methods/method.h"
#include "bench/methods/refine.h"
#include "bench/peers/faiss_specs.h"

namespace seine::bench {
namespace {

class FaissMethod : public Method {
 public:
  FaissMethod(FaissSpec spec, int head_dim, int top_k, const std::vector<double>& betas)
      : spec_(std::move(spec)), head_dim_(head_dim), top_k_(top_k) {
    if (spec_.exact) {
      lines_.push_back({spec_.name, true, 0});
    } else {
      for (double beta : betas) lines_.push_back({spec_.name, false, beta});
    }
  }

  const std::vector<Line>& lines() const override { return lines_; }
  double BytesPerKey(const Line&) const override { return spec_.bytes_per_key; }
  double ScanBytesPerKey(const Line&) const override { return spec_.scan_bytes_per_key; }
  void Release() override { index_.reset(); }
  int64_t MostAsks() const override { return 96; }

  absl::Status Build(const Head& head) override {
    Release();
    head_ = &head;
    zone_ = &head.keys[static_cast<size_t>(head.zone_begin) * head_dim_];
    return CallFaiss([&] {
      index_ = spec_.make();
      if (!index_->is_trained) index_->train(head.num_keys(), zone_);
      index_->add(head.num_keys(), zone_);
    });
  }

  absl::Status Search(const Line& line, const Ask& ask, bool with_candidates, Found* found) override {
    const int64_t n = head_->num_keys();
    const int64_t wanted = line.exact ? top_k_ : std::max<int64_t>(top_k_, std::llround(line.beta * n));
    const int64_t k = std::min(n, wanted);
    ids_.resize(k);
    scores_.resize(k);
    absl::Status status = CallFaiss([&] { index_->search(1, ask.queries, k, scores_.data(), ids_.data()); });
    if (!status.ok()) return status;
    ids_.erase(std::remove(ids_.begin(), ids_.end(), -1), ids_.end());  // fewer found than asked for
    std::sort(ids_.begin(), ids_.end());
    found->stats = {};
    found->candidates.clear();
    if (with_candidates && !line.exact) {
      for (int64_t id : ids_) found->candidates.push_back(static_cast<int32_t>(id + head_->zone_begin));
    }
    found->positions = BestOf(ask.queries, zone_, head_dim_, ids_, top_k_, &scores_);
    for (int32_t& p : found->positions) p += static_cast<int32_t>(head_->zone_begin);
    return absl::OkStatus();
  }

 private:
  FaissSpec spec_;
  int head_dim_, top_k_;
  std::vector<Line> lines_;
  const Head* head_ = nullptr;
  const float* zone_ = nullptr;
  std::unique_ptr<faiss::Index> index_;
  std::vector<faiss::Index::idx_t> ids_;
  std::vector<float> scores_;
};

}  // namespace

absl::StatusOr<std::vector<std::unique_ptr<Method>>> MakeFaissMethods(const std::string& name, int head_dim, int top_k,
                                                                      int64_t num_keys,
                                                                      const std::vector<double>& betas) {
  std::vector<FaissSpec> specs;
  if (name == "faiss_flat") {
    specs.push_back(Flat(head_dim));
  } else if (name == "faiss_pq_fastscan") {
    specs.push_back(PqFastScan(head_dim, head_dim / 8));  // as many bytes as Seine's sign plane
    specs.push_back(PqFastScan(head_dim, head_dim / 4));  // more than Seine's scan reads
  } else if (name == "faiss_ivfpq") {
    specs.push_back(IvfPq(head_dim, head_dim / 4, num_keys));
  } else {
    return absl::InvalidArgumentError(
        absl::StrCat("--baseline: \"", name, "\" is none of faiss_flat, faiss_pq_fastscan, faiss_ivfpq"));
  }
  std::vector<std::unique_ptr<Method>> methods;
  for (FaissSpec& spec : specs) {
    methods.push_back(std::make_unique<FaissMethod>(std::move(spec), head_dim, top_k, betas));
  }
  return methods;
}

std::string FaissVersion() {
  return absl::StrCat("faiss_*: FAISS ", FAISS_VERSION_MAJOR, ".", FAISS_VERSION_MINOR, ".", FAISS_VERSION_PATCH,
                      " as the distribution builds it (generic, without wide SIMD), trained on these keys, candidates "
                      "scored exactly");
}

}  // namespace seine::bench
