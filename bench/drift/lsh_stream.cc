// Locality-sensitive hashing as MagicPIG (docs/references.md) has it: 150 tables of 10 random hyperplanes each, keys
// less the prefill's mean. MagicPIG samples keys that collide with the query; here those with the most collisions are
// the candidates.
#include <algorithm>
#include <random>

#include "bench/drift/candidate_stream.h"

namespace seine::bench {
namespace {

constexpr int kTables = 150, kPlanes = 10;

class LshStream final : public CandidateStream {
 public:
  explicit LshStream(const StreamOptions& options) : CandidateStream(options) {
    std::mt19937_64 random(options.seed);
    std::normal_distribution<float> normal;
    planes_.resize(int64_t{kTables} * kPlanes * dim());
    for (float& v : planes_) v = normal(random);
  }

  double BytesPerKey() const override { return kTables * kPlanes / 8.0; }

 protected:
  absl::Status Learn(const float* keys, int64_t count) override {
    std::vector<double> sum(dim());
    for (int64_t i = 0; i < count * dim(); ++i) sum[i % dim()] += keys[i];
    mean_.resize(dim());
    for (int j = 0; j < dim(); ++j) mean_[j] = static_cast<float>(sum[j] / static_cast<double>(count));
    hashes_.clear();
    return absl::OkStatus();
  }

  absl::Status Add(const float* keys, int64_t held, int64_t count) override {
    hashes_.resize((held + count) * kTables);
    std::vector<float> centred(dim());
    for (int64_t i = 0; i < count; ++i) {
      for (int j = 0; j < dim(); ++j) centred[j] = keys[i * dim() + j] - mean_[j];
      Hash(centred.data(), &hashes_[(held + i) * kTables]);
    }
    return absl::OkStatus();
  }

  absl::Status Choose(const float* query, int64_t held, int64_t wanted, std::vector<int64_t>* rows) override {
    uint16_t own[kTables];
    Hash(query, own);
    collisions_.resize(held);
    for (int64_t i = 0; i < held; ++i) {
      int equal = 0;
      for (int t = 0; t < kTables; ++t) equal += hashes_[i * kTables + t] == own[t] ? 1 : 0;
      collisions_[i] = static_cast<float>(equal);
    }
    const std::vector<int32_t> best = TopIndices(collisions_.data(), held, static_cast<int>(wanted));
    rows->assign(best.begin(), best.end());
    return absl::OkStatus();
  }

 private:
  // The side of each plane that `vector` lies on, a bit a plane and a number a table.
  void Hash(const float* vector, uint16_t* out) const {
    for (int t = 0; t < kTables; ++t) {
      unsigned bits = 0;
      for (int p = 0; p < kPlanes; ++p) {
        bits = 2 * bits + (Dot(vector, &planes_[(int64_t{t} * kPlanes + p) * dim()], dim()) >= 0 ? 1 : 0);
      }
      out[t] = static_cast<uint16_t>(bits);
    }
  }

  std::vector<float> planes_;     // [kTables, kPlanes, dim]
  std::vector<float> mean_;       // [dim]
  std::vector<uint16_t> hashes_;  // [keys, kTables]
  std::vector<float> collisions_;
};

}  // namespace

std::unique_ptr<StreamMethod> MakeLshStream(const StreamOptions& options) {
  return std::make_unique<LshStream>(options);
}

}  // namespace seine::bench
