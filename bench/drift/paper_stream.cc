// ParisKV's pipeline written out plainly from its paper (docs/references.md; section 4 and appendix B): unit keys are
// rotated and cut into subvectors of 8; a subvector's signs name its centroid, and 3 bits a coordinate its magnitudes.
// Collisions with the query's best centroids name candidates, and their estimates from the codes are the answer: no key
// is scored exactly. Its ablations leave out the rotation, or the tiers.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <numeric>

#include "bench/drift/stream_method.h"
#include "bench/methods/paper_schedule.h"
#include "kernels/codecs/rsq/lloyd_max.h"
#include "kernels/math.h"

namespace seine::bench {
namespace {

constexpr int kCoordinates = 8, kCentroids = 256;  // of a subvector: m, and its sign patterns

// The randomised Walsh-Hadamard transform of docs/codecs.md. Where dim is no power of two, the largest one below it is
// transformed at both ends.
class Rotation {
 public:
  Rotation(int dim, uint64_t seed) : dim_(dim), size_(std::bit_floor(static_cast<unsigned>(dim))), seed_(seed) {}

  void Turn(float* x) const {
    Transform(x, 0);
    if (size_ < dim_) Transform(x + dim_ - size_, size_);
  }

 private:
  void Transform(float* x, int first) const {
    const auto scale = static_cast<float>(1 / std::sqrt(static_cast<double>(size_)));
    for (int i = 0; i < size_; ++i) x[i] *= RotationSign(seed_, first + i) * scale;
    for (int half = 1; half < size_; half *= 2) {
      for (int i = 0; i < size_; ++i) {
        if ((i & half) != 0) continue;
        const float a = x[i], b = x[i + half];
        x[i] = a + b;
        x[i + half] = a - b;
      }
    }
  }

  int dim_, size_;
  uint64_t seed_;
};

class PaperStream final : public StreamMethod {
 public:
  PaperStream(bool rotation, bool tiers, const StreamOptions& options)
      : dim_(options.data.head_dim),
        subvectors_(dim_ / kCoordinates),
        top_k_(options.top_k),
        with_rotation_(rotation),
        with_tiers_(tiers),
        by_schedule_(options.paper_schedule),
        rotation_(dim_, options.seed) {}

  absl::Status Begin(const Head&) override {  // it learns nothing
    signs_.clear(), levels_.clear(), weights_.clear();
    counts_.assign(static_cast<size_t>(subvectors_) * kCentroids, 0);
    return absl::OkStatus();
  }

  absl::Status Append(const Head& head) override {
    std::vector<float> key(dim_);
    while (held() < head.num_keys()) {
      const float* row = &head.keys[(head.zone_begin + held()) * dim_];
      key.assign(row, row + dim_);
      Encode(&key);
    }
    return absl::OkStatus();
  }

  absl::Status Search(const Head& head, const Ask& ask, int64_t candidates, std::vector<int32_t>* found) override {
    const auto keys = static_cast<double>(held());
    PaperShares shares{static_cast<double>(candidates) / keys, PaperRho(static_cast<double>(candidates) / keys)};
    if (by_schedule_) {
      shares = PaperSchedule(held());
      candidates = static_cast<int64_t>(std::ceil(shares.beta * keys));
    }
    std::vector<float> query(ask.queries, ask.queries + dim_);
    if (with_rotation_) rotation_.Turn(query.data());
    const std::vector<int32_t> chosen = Candidates(query.data(), shares.rho, candidates);
    std::vector<float> estimates;
    for (const int32_t key : chosen) estimates.push_back(Estimate(query.data(), key));
    *found = TopIndices(estimates.data(), static_cast<int64_t>(estimates.size()), top_k_);
    for (int32_t& p : *found) p = chosen[p] + static_cast<int32_t>(head.zone_begin);
    return absl::OkStatus();
  }

  // As the authors lay it out: a centroid's id, 4 bits a coordinate, a weight of 16 bits a subvector.
  double BytesPerKey() const override { return subvectors_ * (1 + kCoordinates * .5 + 2); }

 private:
  int64_t held() const { return static_cast<int64_t>(signs_.size()) / subvectors_; }

  void Encode(std::vector<float>* key) {
    const float norm = std::sqrt(Dot(key->data(), key->data(), dim_));
    for (float& v : *key) v = norm > 0 ? v / norm : 0;
    if (with_rotation_) rotation_.Turn(key->data());
    for (int b = 0; b < subvectors_; ++b) {
      const float* x = key->data() + b * kCoordinates;
      double square = 0, aligned = 0;  // r^2 and alpha
      for (int j = 0; j < kCoordinates; ++j) square += x[j] * x[j];
      const double radius = std::sqrt(square);
      unsigned pattern = 0;
      for (int j = 0; j < kCoordinates; ++j) {
        const double u = radius > 0 ? std::abs(x[j]) / radius : 0;
        const auto& thresholds = quantiser_.thresholds;
        const auto bin = std::count_if(thresholds.begin(), thresholds.end(), [&](float t) { return t < u; });
        levels_.push_back(static_cast<uint8_t>(bin));
        aligned += quantiser_.levels[bin] * u;
        if (x[j] >= 0) pattern |= 1u << j;
      }
      signs_.push_back(static_cast<uint8_t>(pattern));
      weights_.push_back(radius > 0 ? static_cast<float>(norm * radius / aligned) : 0);
      ++counts_[b * kCentroids + pattern];
    }
  }

  // What a collision with each centroid of subvector b is worth: `query` is the rotated one's part.
  std::array<int, kCentroids> Worth(const float* query, int b, double rho) const {
    constexpr std::array<double, 6> kCuts = {.05, .15, .30, .50, .75, 1.0};
    std::array<float, kCentroids> products;
    for (int c = 0; c < kCentroids; ++c) {
      products[c] = 0;
      for (int j = 0; j < kCoordinates; ++j) products[c] += (c >> j & 1) != 0 ? query[j] : -query[j];
    }
    std::array<int, kCentroids> order, worth;
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int a, int c) { return products[a] > products[c]; });
    int64_t before = 0;
    for (const int c : order) {
      worth[c] = 0;
      for (const double cut : kCuts) {
        const bool within = static_cast<double>(before) < std::ceil(static_cast<double>(held()) * rho * cut);
        if (with_tiers_ || cut == kCuts.back()) worth[c] += within ? 1 : 0;
      }
      before += counts_[b * kCentroids + c];
    }
    return worth;
  }

  // The keys that collide most, ties to the earliest, of those that collide at all.
  std::vector<int32_t> Candidates(const float* query, double rho, int64_t wanted) const {
    std::vector<float> scores(held());
    for (int b = 0; b < subvectors_; ++b) {
      const std::array<int, kCentroids> worth = Worth(query + b * kCoordinates, b, rho);
      for (int64_t i = 0; i < held(); ++i) scores[i] += static_cast<float>(worth[signs_[i * subvectors_ + b]]);
    }
    std::vector<int32_t> best = TopIndices(scores.data(), held(), static_cast<int>(wanted));
    if (wanted < held()) std::erase_if(best, [&](int32_t i) { return scores[i] == 0; });
    return best;
  }

  // <q, k> from the codes: sum_b w_b <v_b, q_b>.
  float Estimate(const float* query, int64_t key) const {
    double sum = 0;
    for (int b = 0; b < subvectors_; ++b) {
      const int64_t at = key * subvectors_ + b;
      double product = 0;
      for (int j = 0; j < kCoordinates; ++j) {
        const double level = quantiser_.levels[levels_[at * kCoordinates + j]];
        product += ((signs_[at] >> j & 1) != 0 ? level : -level) * query[b * kCoordinates + j];
      }
      sum += weights_[at] * product;
    }
    return static_cast<float>(sum);
  }

  const int dim_, subvectors_, top_k_;
  const bool with_rotation_, with_tiers_, by_schedule_;
  const Rotation rotation_;
  const MagnitudeQuantiser& quantiser_ = RsqQuantiser();
  std::vector<uint8_t> signs_;   // [keys, subvectors]
  std::vector<uint8_t> levels_;  // [keys, subvectors, kCoordinates]
  std::vector<float> weights_;   // [keys, subvectors]
  std::vector<int64_t> counts_;  // [subvectors, kCentroids], keys of each centroid
};

}  // namespace

std::unique_ptr<StreamMethod> MakePaperStream(bool rotation, bool tiers, const StreamOptions& options) {
  return std::make_unique<PaperStream>(rotation, tiers, options);
}

}  // namespace seine::bench
