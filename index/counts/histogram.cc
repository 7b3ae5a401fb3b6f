#include "index/counts/histogram.h"

#include <bit>
#include <limits>
#include <numeric>

namespace seine {
namespace {

constexpr std::array<int64_t, kBounds> MakeBounds() {
  constexpr int64_t kSteps[kBucketsADecade] = {1000, 1250, 1600, 2000, 2500, 3150, 4000, 5000, 6300, 8000};
  std::array<int64_t, kBounds> bounds = {};
  int64_t decade = 1;
  for (int i = 0; i < kBounds; ++i) {
    bounds[i] = kSteps[i % kBucketsADecade] * decade;
    if (i % kBucketsADecade == kBucketsADecade - 1) decade *= 10;
  }
  return bounds;
}
constexpr std::array<int64_t, kBounds> kMade = MakeBounds();

// The first bucket that a number of so many bits may be in.
constexpr std::array<uint8_t, 65> MakeFirst() {
  std::array<uint8_t, 65> first = {};
  for (int bits = 1; bits <= 64; ++bits) {
    const int64_t least = bits >= 64 ? std::numeric_limits<int64_t>::max() : int64_t{1} << (bits - 1);
    while (first[bits] < kBounds && kMade[first[bits]] < least) ++first[bits];
  }
  return first;
}
constexpr std::array<uint8_t, 65> kFirst = MakeFirst();

}  // namespace

const std::array<int64_t, kBounds> kBucketBounds = kMade;

int BucketOf(int64_t ns) {
  if (ns <= kMade[0]) return 0;
  int bucket = kFirst[std::bit_width(static_cast<uint64_t>(ns))];
  while (bucket < kBounds && ns > kMade[bucket]) ++bucket;
  return bucket;
}

int64_t HistogramReading::count() const { return std::accumulate(counts.begin(), counts.end(), int64_t{0}); }

double HistogramReading::bound_seconds(int bucket) const {
  if (bucket >= kBounds) return std::numeric_limits<double>::infinity();
  return static_cast<double>(kMade[bucket]) * static_cast<double>(times) * 1e-9;
}

HistogramReading& HistogramReading::operator+=(const HistogramReading& o) {
  for (size_t i = 0; i < counts.size(); ++i) counts[i] += o.counts[i];
  sum_ns += o.sum_ns;
  times = o.times;
  return *this;
}

double Quantile(const HistogramReading& reading, double share) {
  const double wanted = share * static_cast<double>(reading.count());
  double before = 0;
  for (int b = 0; b <= kBounds; ++b) {
    const auto here = static_cast<double>(reading.counts[b]);
    if (here > 0 && before + here >= wanted) {
      const double low = b == 0 ? 0 : reading.bound_seconds(b - 1);
      if (b == kBounds) return low;  // longer than that; by how much is not known
      return low + (reading.bound_seconds(b) - low) * (wanted - before) / here;
    }
    before += here;
  }
  return 0;
}

HistogramReading Histogram::Read() const {
  HistogramReading reading;
  cells_->Read(first_, &reading.counts);
  reading.sum_ns = cells_->Read(first_ + kBounds + 1);
  reading.times = times_;
  return reading;
}

}  // namespace seine
