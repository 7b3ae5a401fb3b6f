// FAISS as bench methods: flat, PQ fast-scan, IVF-PQ. The only file that includes FAISS. This is the distribution's
// FAISS, a generic build without wide SIMD: bench/methods/peers.py measures a fast one. Trained on the very keys that
// are searched; the best beta * n by its codes are scored exactly in fp32 and the best top_k of them are the answer, as
// Seine's refine does.
#include <faiss/IndexFlat.h>
#include <faiss/IndexIVFPQ.h>
#include <faiss/IndexPQFastScan.h>
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "absl/strings/str_cat.h"
#include "bench/methods/method.h"

namespace seine::bench {
namespace {

// Calls into FAISS, which reports by throwing; nothing throws beyond here.
template <typename F>
absl::Status Call(const F& f) {
  try {
    f();
    return absl::OkStatus();
  } catch (const std::exception& e) {
    return absl::InternalError(absl::StrCat("FAISS: ", e.what()));
  }
}

struct FaissSpec {
  std::string name;
  bool exact = false;
  double bytes_per_key = 0;       // codes, with ids where it keeps them
  double scan_bytes_per_key = 0;  // read by one search
  std::function<std::unique_ptr<faiss::Index>()> make;
};

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
    omp_set_num_threads(
        1);  // searches are timed on one thread; and OpenMP's barriers spin for minutes on a busy machine
    return Call([&] {
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
    absl::Status status = Call([&] { index_->search(1, ask.queries, k, scores_.data(), ids_.data()); });
    if (!status.ok()) return status;
    ids_.erase(std::remove(ids_.begin(), ids_.end(), -1), ids_.end());  // fewer found than asked for
    std::sort(ids_.begin(), ids_.end());
    found->stats = {};
    found->candidates.clear();
    if (with_candidates && !line.exact) {
      for (int64_t id : ids_) found->candidates.push_back(static_cast<int32_t>(id + head_->zone_begin));
    }
    Refine(ask, &found->positions);
    return absl::OkStatus();
  }

 private:
  void Refine(const Ask& ask, std::vector<int32_t>* positions) {
    constexpr size_t kAhead = 8;  // rows come from memory: ask for them in time
    scores_.resize(ids_.size());
    for (size_t i = 0; i < ids_.size(); ++i) {
      if (i + kAhead < ids_.size()) {
        const float* next = zone_ + ids_[i + kAhead] * head_dim_;
        for (int j = 0; j < head_dim_; j += 16) __builtin_prefetch(next + j);
      }
      scores_[i] = Dot(ask.queries, zone_ + ids_[i] * head_dim_, head_dim_);
    }
    *positions = TopIndices(scores_.data(), static_cast<int64_t>(ids_.size()), top_k_);
    for (int32_t& p : *positions) p = static_cast<int32_t>(ids_[p] + head_->zone_begin);
  }

  FaissSpec spec_;
  int head_dim_, top_k_;
  std::vector<Line> lines_;
  const Head* head_ = nullptr;
  const float* zone_ = nullptr;
  std::unique_ptr<faiss::Index> index_;
  std::vector<faiss::Index::idx_t> ids_;
  std::vector<float> scores_;
};

FaissSpec Flat(int head_dim) {
  return {"faiss_flat", true, 4.0 * head_dim, 4.0 * head_dim,
          [head_dim] { return std::make_unique<faiss::IndexFlatIP>(head_dim); }};
}

// `bytes` a key: two 4-bit codes each.
FaissSpec PqFastScan(int head_dim, int bytes) {
  return {absl::StrCat("faiss_pq_fastscan ", bytes, " B"), false, 1.0 * bytes, 1.0 * bytes, [head_dim, bytes] {
            return std::make_unique<faiss::IndexPQFastScan>(head_dim, 2 * bytes, 4, faiss::METRIC_INNER_PRODUCT);
          }};
}

// Inverted lists of about sqrt(n) centroids, a quarter of them probed, 8-bit PQ of the residuals.
FaissSpec IvfPq(int head_dim, int bytes, int64_t num_keys) {
  constexpr int kIdBytes = 8;
  const int nlist = static_cast<int>(std::clamp(std::exp2(std::floor(std::log2(std::sqrt(num_keys)))), 4.0, 4096.0));
  const int nprobe = std::max(1, nlist / 4);
  const double share = static_cast<double>(nprobe) / nlist;
  return {absl::StrCat("faiss_ivfpq ", bytes, " B, ", nprobe, "/", nlist, " lists"), false, 1.0 * bytes + kIdBytes,
          share * (bytes + kIdBytes), [head_dim, bytes, nlist, nprobe]() -> std::unique_ptr<faiss::Index> {
            auto index = std::make_unique<faiss::IndexIVFPQ>(new faiss::IndexFlatIP(head_dim), head_dim, nlist, bytes,
                                                             8, faiss::METRIC_INNER_PRODUCT);
            index->own_fields = true;  // the quantizer above
            index->nprobe = nprobe;
            index->cp.niter = index->pq.cp.niter = 10;
            index->cp.max_points_per_centroid = index->pq.cp.max_points_per_centroid = 64;  // minutes otherwise
            index->cp.min_points_per_centroid = index->pq.cp.min_points_per_centroid = 1;   // no warnings
            return index;
          }};
}

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
