// What codecs' device code works on in a search: the shared memory of a query's preparation and of its rerank, and a
// key's code as a lane reads it.
#ifndef SEINE_KERNELS_OPS_QUERY_QUERY_CUDA_H_
#define SEINE_KERNELS_OPS_QUERY_QUERY_CUDA_H_

#include <cmath>
#include <cstdint>

#include "kernels/codecs/kinds/registry.h"
#include "kernels/cuda/block.h"
#include "kernels/cuda/load.h"
#include "kernels/math.h"
#include "kernels/ops/query/code_reader.h"
#include "kernels/ops/query/search_items.h"
#include "kernels/ops/select/block_select_cuda.h"

namespace seine::cuda {

inline constexpr int kPrepareLanes = 512;
inline constexpr int kCentroids = 256;
static_assert(kPrepareLanes >= kMaxHeadDim && kPrepareLanes >= kCentroids);  // a lane a coordinate, or a centroid
inline constexpr int kMaxNibbles = kMaxHeadDim / 4;

struct PrepareShared {
  float query[kMaxHeadDim], transformed[kMaxHeadDim], weights[kMaxHeadDim];
  float sums[kMaxNibbles * 16];
  uint32_t query8[kMaxHeadDim / 4];   // bytes; as the next what other kernels read from memory
  uint8_t entries[kMaxNibbles * 16];  // of the nibble tables
  uint32_t largest[3];                // bits of the largest |x|: of query8's source, of the weights, of the sums
  float noise[16], errors[3][16];
  int32_t centre_dot;
  uint16_t first_place[kMaxNibbles];  // balanced: where a nibble's coordinates begin in coarse_order
  uint64_t ranks[kCentroids];         // collision: of centroids
  uint32_t counts[kCentroids];        // collision: of searched keys, by centroid
  PrefixShared prefix;
};

// Non-negative floats compare as their bits.
template <typename Block>
SEINE_BODY void RaiseTo(Block& block, uint32_t* largest, float x) {
  block.AtomicMax(largest, FloatBits(fabsf(x)));
}

inline constexpr int kRerankLanes = 256;
inline constexpr int kRerankKeys = 512;  // a block: the steps are copied once for all
// Words that a lane keeps of a key: coarse row, record, and one more.
SEINE_HD constexpr int CodeWords(int coarse_bytes, int fine_bytes) {
  return coarse_bytes / 4 + (fine_bytes + 3) / 4 + 1;
}
constexpr int RsqWords(int head_dim) { return CodeWords(head_dim / 8, head_dim / 2); }
inline constexpr int kRerankWords = RsqWords(kNarrowHeadDim) * kRerankLanes;
// Lanes that rerank: all but where codes are the longest, those of rsq above kNarrowHeadDim.
SEINE_HD constexpr int RerankColumns(const CodeLayout& layout) {
  const bool all = CodeWords(layout.coarse_bytes, layout.fine_bytes) * kRerankLanes <= kRerankWords;
  return all ? kRerankLanes : kRerankLanes / 2;
}
static_assert(RsqWords(kMaxHeadDim) * kRerankLanes / 2 <= kRerankWords);
inline constexpr int kBalancedWords = CodeWords(kMaxBalancedBytes, 1) * kRerankLanes;

// FineStep of one query: 16 bytes, one broadcast.
struct WeightedStep {
  uint32_t shift, mask, levels;
  int32_t weight;
};
struct RerankShared {
  alignas(16) uint32_t words[kRerankWords];  // a lane's coarse row, then its record: RerankColumns lie side by side
  int8_t levels[128];                        // balanced: of an index of b bits at 2^b, signed; rsq: of bin t at t
  int8_t query8[kMaxHeadDim];                // rsq
  // Balanced: balanced/fine_steps.h. Its codes leave room for the steps behind their words.
  uint32_t mixed_from[kRecordWords + 1], plain_from[kRecordWords + 1];
  SEINE_BODY WeightedStep* steps() { return reinterpret_cast<WeightedStep*>(words + kBalancedWords); }
  SEINE_BODY const WeightedStep* steps() const { return reinterpret_cast<const WeightedStep*>(words + kBalancedWords); }
  SEINE_BODY CoarseStep* coarse() { return reinterpret_cast<CoarseStep*>(steps() + kMaxHeadDim); }
  SEINE_BODY const CoarseStep* coarse() const { return reinterpret_cast<const CoarseStep*>(steps() + kMaxHeadDim); }
};
static_assert(kBalancedWords * 4 + kMaxHeadDim * (sizeof(WeightedStep) + sizeof(CoarseStep)) <= kRerankWords * 4);

// A lane's column of s.words, of so many.
struct Code {
  const uint32_t* words;
  int columns;
  SEINE_BODY uint32_t Word(int i) const { return words[i * columns]; }
  SEINE_BODY uint32_t Byte(int i) const { return Word(i / 4) >> (i % 4 * 8) & 255; }
};

// Coarse row and record of a key; records are copied by whole words, so that they begin at a word.
SEINE_BODY inline uint32_t LoadCode(const SearchItem& item, uint32_t key, uint32_t* words, int columns) {
  const uint32_t segment = key / item.segment_keys, place = key - segment * item.segment_keys;
  const ConstCodePlanes& planes = item.segments[segment];
  const CodeLayout& layout = item.layout;
  const uint8_t* tile = planes.coarse + static_cast<size_t>(place / kTileTokens) * kTileTokens * layout.coarse_bytes;
  for (int g = 0; g < layout.coarse_bytes / 4; ++g) {
    words[g * columns] = LoadWord(tile + g * 64 + place % kTileTokens * 4);
  }
  const size_t first = static_cast<size_t>(place) * layout.fine_bytes;
  const uint8_t* record = planes.fine + first / 4 * 4;
  const int shift = static_cast<int>(first % 4) * 8, count = (layout.fine_bytes + 3) / 4;
  words += layout.coarse_bytes / 4 * columns;
  uint32_t low = LoadWord(record);
  for (int i = 0; i < count; ++i) {
    const bool more = (i + 1) * 4 < layout.fine_bytes + static_cast<int>(first % 4);  // records end where the plane may
    const uint32_t high = more ? LoadWord(record + (i + 1) * 4) : 0;
    words[i * columns] = static_cast<uint32_t>((low | static_cast<uint64_t>(high) << 32) >> shift);
    low = high;
  }
  words[count * columns] = 0;
  return planes.fine_base[place / kWindowTokens];
}

// 32 bits from bit `shift` < 32 of two words.
SEINE_BODY inline uint32_t Across(uint32_t low, uint32_t high, uint32_t shift) {
#ifdef __CUDA_ARCH__
  return __funnelshift_r(low, high, shift);
#else
  return static_cast<uint32_t>((low | static_cast<uint64_t>(high) << 32) >> shift);
#endif
}

}  // namespace seine::cuda

#endif  // SEINE_KERNELS_OPS_QUERY_QUERY_CUDA_H_
