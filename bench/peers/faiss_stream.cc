// PQ and IVF by FAISS (bench/peers/faiss_specs.h), whose centroids are trained once; later keys are assigned to them.
#include <faiss/Index.h>

#include <algorithm>
#include <utility>

#include "bench/drift/candidate_stream.h"
#include "bench/peers/faiss_specs.h"

namespace seine::bench {
namespace {

class FaissStream final : public CandidateStream {
 public:
  FaissStream(FaissSpec spec, bool learns_from_all, const StreamOptions& options)
      : CandidateStream(options), spec_(std::move(spec)), learns_from_all_(learns_from_all) {}

  bool LearnsFromAll() const override { return learns_from_all_; }
  double BytesPerKey() const override { return spec_.bytes_per_key; }

 protected:
  absl::Status Learn(const float* keys, int64_t count) override {
    return CallFaiss([&] {
      index_ = spec_.make();
      index_->train(count, keys);
    });
  }

  absl::Status Add(const float* keys, int64_t, int64_t count) override {
    return CallFaiss([&] { index_->add(count, keys); });
  }

  absl::Status Choose(const float* query, int64_t, int64_t wanted, std::vector<int64_t>* rows) override {
    rows->resize(wanted);
    scores_.resize(wanted);
    const absl::Status status = CallFaiss([&] { index_->search(1, query, wanted, scores_.data(), rows->data()); });
    rows->erase(std::remove(rows->begin(), rows->end(), -1), rows->end());  // fewer found than asked for
    std::sort(rows->begin(), rows->end());
    return status;
  }

 private:
  FaissSpec spec_;
  bool learns_from_all_;
  std::unique_ptr<faiss::Index> index_;
  std::vector<float> scores_;
};

FaissSpec SpecOf(const std::string& name, const StreamOptions& options) {
  const int dim = options.data.head_dim;
  if (name == "pq") return PqFastScan(dim, dim / 4);
  if (name == "pq8") return Pq(dim, dim / 4, 8);
  if (name == "pqcache") return Pq(dim, 2, 6);  // as PQCache sets them
  return IvfPq(dim, dim / 4, options.prefill);
}

}  // namespace

absl::StatusOr<std::unique_ptr<StreamMethod>> MakeFaissStream(const std::string& name, bool learns_from_all,
                                                              const StreamOptions& options) {
  return std::make_unique<FaissStream>(SpecOf(name, options), learns_from_all, options);
}

}  // namespace seine::bench
