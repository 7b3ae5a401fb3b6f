#include "index/subspace/packed_tracker.h"

#include <algorithm>
#include <cmath>

#include "index/bytes/state_reader.h"
#include "index/bytes/state_writer.h"
#include "kernels/host.h"
#include "kernels/math.h"

namespace seine {

namespace {

constexpr int kLargestCode = 2047;  // of 12 bits, the sign among them
constexpr int kCodeBits = 12;
constexpr int kPolishRounds = 2;  // 1e-3 becomes 1e-6, and that what fp32 leaves

void PackPair(int32_t a, int32_t b, uint8_t* out) {
  const uint32_t bits = (static_cast<uint32_t>(a) & 0xfff) | (static_cast<uint32_t>(b) & 0xfff) << kCodeBits;
  for (int i = 0; i < 3; ++i) out[i] = static_cast<uint8_t>(bits >> (8 * i));
}

// The 12 bits from `shift` on, their sign carried up.
int32_t CodeAt(const uint8_t* pair, int shift) {
  const uint32_t bits = pair[0] | uint32_t{pair[1]} << 8 | uint32_t{pair[2]} << 16;
  const auto code = static_cast<int32_t>(bits >> shift & 0xfff);
  return code > kLargestCode ? code - (1 << kCodeBits) : code;
}

void Polish(Basis* basis) {
  const int stride = basis->stride(), rank = basis->rank, dim = basis->head_dim;
  std::vector<float> gram(static_cast<size_t>(rank) * stride);
  for (int round = 0; round < kPolishRounds; ++round) {
    host::MatMul(basis->Transposed(), basis->u.data(), stride, rank, rank, dim, false, gram.data(), stride);
    for (int i = 0; i < rank; ++i) {
      for (int j = 0; j < rank; ++j) {
        float& x = gram[static_cast<size_t>(i) * stride + j];
        x = .5f * ((i == j ? 1.0f : 0.0f) - x);
      }
    }
    const std::vector<float> old = basis->u;
    host::MatMul({old.data(), stride, 1}, gram.data(), stride, dim, rank, rank, true, basis->u.data(), stride);
  }
}

}  // namespace

PackedTracker::PackedTracker(const OjaTracker& tracker)
    : options_(tracker.options()),
      stats_(tracker.stats()),
      head_dim_(tracker.basis().head_dim),
      rank_(tracker.basis().rank),
      version_(tracker.basis().version),
      rows_(tracker.rows()) {
  Pack(tracker.basis());
}

void PackedTracker::Rest(const OjaTracker& tracker) {
  const bool turned = tracker.stats().updates != stats_.updates;
  stats_ = tracker.stats();
  if (turned) Pack(tracker.basis());
  version_ = tracker.basis().version;
  rows_ = tracker.rows();
}

void PackedTracker::Pack(const Basis& basis) {
  largest_.resize(rank_);
  codes_.resize(static_cast<size_t>(rank_) * (head_dim_ / 2) * 3);
  uint8_t* out = codes_.data();
  uint64_t drawn = 0;
  for (int column = 0; column < rank_; ++column) {
    const auto entry = [&](int row) { return basis.u[static_cast<size_t>(row) * basis.stride() + column]; };
    float largest = 0;
    for (int row = 0; row < head_dim_; ++row) largest = std::max(largest, std::fabs(entry(row)));
    largest_[column] = largest;
    const auto code = [&](int row) {
      const double lift = static_cast<double>(SplitMix64(stats_.updates, drawn++) >> 11) * 0x1p-53;  // in [0, 1)
      return static_cast<int32_t>(std::floor(double{entry(row)} / largest * kLargestCode + lift));
    };
    for (int row = 0; row < head_dim_; row += 2, out += 3) {
      const int32_t first = code(row), second = code(row + 1);
      PackPair(first, second, out);
    }
  }
}

void PackedTracker::Save(StateWriter* writer) const {
  for (const int64_t count : {stats_.rows, stats_.intervals, stats_.updates, stats_.since_update, stats_.large_steps}) {
    writer->Put(count);
  }
  for (const double energy : {stats_.energy, stats_.residual_energy, stats_.last_ratio}) writer->Put(energy);
  writer->Put(version_);
  writer->PutVector(largest_);
  writer->PutVector(codes_);
  writer->PutVector(rows_);
}

PackedTracker PackedTracker::Load(const OjaOptions& options, int head_dim, int rank, StateReader* reader) {
  constexpr int64_t kMost = INT64_MAX / 4;
  PackedTracker tracker(options, head_dim, rank);
  OjaStats& s = tracker.stats_;
  for (int64_t* count : {&s.rows, &s.intervals, &s.updates, &s.since_update, &s.large_steps}) {
    *count = reader->GetWithin(0, kMost, "a basis has learnt too much");
  }
  for (double* energy : {&s.energy, &s.residual_energy, &s.last_ratio}) *energy = reader->GetFinite<double>();
  tracker.version_ = reader->GetWithin(0, kMost, "a basis has learnt too much");
  tracker.largest_ = reader->GetFiniteVector<float>(rank);
  tracker.codes_ = reader->GetVector<uint8_t>();
  tracker.rows_ = reader->GetVector<float>();
  const size_t code_bytes = static_cast<size_t>(rank) * (head_dim / 2) * 3;
  reader->Check(tracker.codes_.size() == code_bytes && tracker.rows_.size() % head_dim == 0 &&
                    tracker.rows_.size() < static_cast<size_t>(options.interval) * head_dim,
                "a basis has a wrong size");
  for (const float x : tracker.rows_) reader->Check(std::isfinite(x), "a number is not finite");
  return tracker;
}

Basis PackedTracker::basis() const {
  Basis basis;
  basis.head_dim = head_dim_;
  basis.rank = rank_;
  basis.version = version_;
  basis.u.assign(static_cast<size_t>(head_dim_) * basis.stride(), 0.0f);
  const uint8_t* in = codes_.data();
  for (int column = 0; column < rank_; ++column) {
    const double step = double{largest_[column]} / kLargestCode;
    for (int row = 0; row < head_dim_; row += 2, in += 3) {
      float* out = &basis.u[static_cast<size_t>(row) * basis.stride() + column];
      out[0] = static_cast<float>(CodeAt(in, 0) * step);
      out[basis.stride()] = static_cast<float>(CodeAt(in, kCodeBits) * step);
    }
  }
  Polish(&basis);
  return basis;
}

}  // namespace seine
