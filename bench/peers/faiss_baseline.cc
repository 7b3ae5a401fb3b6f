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
  FaissMethod(FaissSpec spec, int head_dim, int top_k, double row_bytes, const std::vector<double>& betas,
              const std::vector<int64_t>& candidates)
      : spec_(std::move(spec)), head_dim_(head_dim), top_k_(top_k), row_bytes_(row_bytes) {
    if (spec_.exact) {
      lines_.push_back({spec_.name, true, 0});
      return;
    }
    for (double beta : betas) lines_.push_back({spec_.name, false, beta});
    for (const int64_t count : candidates) lines_.push_back({spec_.name, false, 0, 0, count});
  }

  const std::vector<Line>& lines() const override { return lines_; }
  double BytesPerKey(const Line&) const override { return spec_.bytes_per_key; }
  double ScanBytesPerKey(const Line&) const override { return spec_.scan_bytes_per_key; }
  double BytesRead(const Line& line, int64_t num_keys, const Found& found) const override {
    const double scan = spec_.scan_bytes_per_key * static_cast<double>(num_keys);
    return line.exact ? scan : scan + row_bytes_ * static_cast<double>(found.candidates.size());
  }
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
    const int64_t of_share = std::max<int64_t>(top_k_, std::llround(line.beta * static_cast<double>(n)));
    const int64_t wanted = line.exact ? top_k_ : line.candidates > 0 ? line.candidates : of_share;
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
  double row_bytes_;  // of a stored key
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
    methods.push_back(std::make_unique<FaissMethod>(std::move(spec), head_dim, top_k, sizeof(float) * head_dim, betas,
                                                    std::vector<int64_t>()));
  }
  return methods;
}

absl::StatusOr<std::unique_ptr<Method>> MakeFaissPq(const DatasetInfo& data, int bytes, int top_k,
                                                    const std::vector<int64_t>& candidates) {
  return std::make_unique<FaissMethod>(PqFastScan(data.head_dim, bytes), data.head_dim, top_k, RowBytes(data),
                                       std::vector<double>(), candidates);
}

std::string FaissVersion() {
  return absl::StrCat("faiss_*: FAISS ", FAISS_VERSION_MAJOR, ".", FAISS_VERSION_MINOR, ".", FAISS_VERSION_PATCH,
                      " as the distribution builds it (generic, without wide SIMD), trained on these keys, candidates "
                      "scored exactly");
}

}  // namespace seine::bench
