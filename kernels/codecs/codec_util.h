// What the codecs share: int8 vectors, nibble tables, and the walks over keys' segments and candidates' records.
// Internal to kernels/.
#ifndef SEINE_KERNELS_CODECS_CODEC_UTIL_H_
#define SEINE_KERNELS_CODECS_CODEC_UTIL_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/codecs/code.h"
#include "kernels/cpu/prefetch.h"
#include "kernels/math.h"
#include "kernels/ops/rows/rows.h"
#include "kernels/ops/select/select.h"

namespace seine {

// Largest |x| of n >= 1.
inline float Largest(const float* x, size_t n) {
  float low, high;
  cpu::Range(x, n, &low, &high);
  return std::max(0.0f, std::max(-low, high));
}

// The base of a window's factors [kWindowTokens], none negative.
inline uint32_t WindowFactorBase(const float* factors) {
  const auto [smallest, largest] = std::minmax_element(factors, factors + kWindowTokens);
  return FactorBase(*largest, *smallest);
}

// int8 values with one scale; returns the scale, 0 for a zero vector. n a multiple of 16.
inline float Quantise8(const float* x, int n, int8_t* out) {
  const Scale8 scale = Scale8Of(Largest(x, n));
  cpu::ToInt8Row(x, n, scale.inverse, out);
  return scale.step;
}

inline constexpr int kMaxNibbles = kMaxHeadDim / 4;  // of a coarse row: at most a bit a coordinate

// The table of nibble `nibble` (low or high half of byte nibble / 2) in PreparedQuery::tables.
inline uint8_t* NibbleTable(PreparedQuery* query, int nibble) {
  const int byte = nibble / 2;
  return query->tables.data() + (byte / 4) * 128 + (nibble % 2) * 64 + (byte % 4) * 16;
}

// Finds keys of a zone in its segments. Keys mostly ascend, so that a segment serves many: a division for each would
// cost as much as all else that is done to find one.
class SegmentWalk {
 public:
  SegmentWalk(const ConstCodePlanes* segments, int segment_keys)
      : segments_(segments), planes_(segments), keys_(static_cast<uint32_t>(segment_keys)) {}
  // The key's place in its segment, which planes() are then those of.
  uint32_t PlaceOf(uint32_t key) {
    if (key - first_ >= keys_) {
      planes_ = segments_ + key / keys_;
      first_ = key / keys_ * keys_;
    }
    return key - first_;
  }
  const ConstCodePlanes& planes() const { return *planes_; }

 private:
  const ConstCodePlanes *segments_, *planes_;
  uint32_t first_ = 0;
  const uint32_t keys_;
};

// Candidates' coarse rows and fine records, a batch at a time; each batch is fetched while the one before is worked on.
struct RecordBatch {
  static constexpr size_t kSize = 64;
  const uint8_t *rows[kSize], *records[kSize];
  const uint32_t* base_at[kSize];
  float base[kSize];                        // Candidates::base
  uint8_t copied[kSize * kMaxHeadDim / 8];  // rows that the candidates do not hold
  int size = 0;

  void Fetch(const CodeLayout& layout, const Candidates& candidates, const uint32_t* chosen, size_t left,
             SegmentWalk* walk) {
    size = static_cast<int>(std::min(kSize, left));
    const size_t fine_bytes = layout.fine_bytes, coarse_bytes = layout.coarse_bytes;
    const uint32_t* const index = candidates.index.data();
    const float* const bases = candidates.base.data();
    const uint32_t* asked = nullptr;
    for (int i = 0; i < size; ++i) {
      const uint32_t at = chosen[i], key = walk->PlaceOf(index[at]);
      const ConstCodePlanes& planes = walk->planes();
      const uint8_t* const record = planes.fine + key * fine_bytes;
      cpu::PrefetchFar(record);
      for (size_t b = 64; b < fine_bytes; b += 64) cpu::PrefetchFar(record + b);
      cpu::PrefetchFar(record + fine_bytes - 1);
      const uint32_t* const line = planes.fine_base + key / kWindowTokens / 16 * 16;
      if (line != asked) cpu::PrefetchFar(asked = line);  // keys mostly ascend
      records[i] = record;
      base_at[i] = planes.fine_base + key / kWindowTokens;
      base[i] = bases[at];
      if (candidates.rows_copied) {
        rows[i] = candidates.rows.data() + at * coarse_bytes;
        continue;
      }
      uint8_t* const row = copied + i * coarse_bytes;
      CopyCoarseRow(CoarseRowAt(planes.coarse, layout.coarse_bytes, key), layout.coarse_bytes, row);
      rows[i] = row;
    }
  }
};

// use(batch, bases, first): the batch's records are at hand, bases are those of their windows.
template <typename Use>
void ForEachRecordBatch(const CodeLayout& layout, const Candidates& candidates, const uint32_t* chosen, size_t count,
                        const ConstCodePlanes* segments, int segment_keys, Use use) {
  RecordBatch batches[2];
  SegmentWalk walk(segments, segment_keys);
  const auto fetch = [&](size_t first) {
    if (first >= count) return;
    batches[first / RecordBatch::kSize % 2].Fetch(layout, candidates, chosen + first, count - first, &walk);
  };
  fetch(0);
  for (size_t first = 0; first < count; first += RecordBatch::kSize) {
    fetch(first + RecordBatch::kSize);
    const RecordBatch& batch = batches[first / RecordBatch::kSize % 2];
    uint32_t bases[RecordBatch::kSize];
    for (int i = 0; i < batch.size; ++i) bases[i] = *batch.base_at[i];
    use(batch, bases, first);
  }
}

}  // namespace seine

#endif  // SEINE_KERNELS_CODECS_CODEC_UTIL_H_
