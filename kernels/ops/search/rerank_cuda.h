// Fifth step: fine estimates of <q, k> from the coarse row and the record of a key, a lane a key. The same body scores
// the keys of a set where none are stored.
//
// Reads of a candidate: its coarse words (a sector each), its record, and the factors' base of its window. A balanced
// record is read as a stream of words in registers; where each coordinate's bits lie is the same for all lanes and read
// from shared memory as one broadcast: 5 operations for a coordinate without coarse bits, 11 for one with.
#ifndef SEINE_KERNELS_OPS_SEARCH_RERANK_CUDA_H_
#define SEINE_KERNELS_OPS_SEARCH_RERANK_CUDA_H_

#include <cstdint>

#include "kernels/cuda/block.h"
#include "kernels/cuda/code_reader.h"
#include "kernels/ops/search/search_items.h"

namespace seine::cuda {

inline constexpr int kRerankLanes = 128;
inline constexpr int kRerankKeys = 512;                // a block: the steps are copied once for all
inline constexpr int kMaxFineBytes = kMaxHeadDim / 2;  // rsq; the balanced code's are fewer
inline constexpr int kCodeWords = (kMaxHeadDim / 8 + kMaxFineBytes) / 4 + 1;

// FineStep of one query: 16 bytes, one broadcast.
struct WeightedStep {
  uint32_t shift, mask, levels;
  int32_t weight;
};
struct RerankShared {
  uint32_t words[kCodeWords][kRerankLanes];  // a lane's coarse row, then its record
  int8_t levels[128];                        // balanced: of an index of b bits at 2^b, signed; rsq: of bin t at t
  int8_t query8[kMaxHeadDim];                // rsq
  // Balanced: codec_tables.h, FineSteps.
  WeightedStep steps[kMaxHeadDim];
  CoarseStep coarse[kMaxHeadDim];
  uint32_t mixed_from[kRecordWords + 1], plain_from[kRecordWords + 1];
};

template <typename Block>
SEINE_BODY void BeginRerank(Block& block, RerankShared& s, const SearchItem& item, const QueryPlan& q) {
  const CodecTables& codec = *item.codec;
  const bool balanced = codec.kind == CodecKind::kBalanced;
  block.Lanes([&](int lane) {
    if (!balanced) {
      for (int i = lane; i < item.layout.head_dim; i += block.num_lanes()) s.query8[i] = q.query8[i];
      if (lane < 8) s.levels[lane] = static_cast<int8_t>(codec.rsq.levels8[lane]);
      return;
    }
    for (uint32_t i = lane; i < codec.fine_steps.size; i += block.num_lanes()) {
      const FineStep step = codec.fine_steps.data[i];
      s.steps[i] = {step.shift, step.mask, step.levels, q.fine8[step.coordinate]};
    }
    for (uint32_t i = lane; i < codec.coarse_steps.size; i += block.num_lanes())
      s.coarse[i] = codec.coarse_steps.data[i];
    if (lane <= kRecordWords) {
      s.mixed_from[lane] = codec.mixed_from.data[lane];
      s.plain_from[lane] = codec.plain_from.data[lane];
    }
    if (lane < 2) return;
    int bits = 1;
    while (lane >> (bits + 1) != 0) ++bits;
    const int half = 1 << (bits - 1), index = lane - 2 * half;
    const uint8_t* levels = codec.quantiser.data->levels8 + half - 1;
    s.levels[lane] = static_cast<int8_t>(index >= half ? levels[index - half] : -levels[half - 1 - index]);
  });
}

// A lane's column of s.words.
struct Code {
  const uint32_t* words;
  SEINE_BODY uint32_t Word(int i) const { return words[i * kRerankLanes]; }
  SEINE_BODY uint32_t Byte(int i) const { return Word(i / 4) >> (i % 4 * 8) & 255; }
};

// Coarse row and record of a key; records are copied by whole words, so that they begin at a word.
SEINE_BODY inline uint32_t LoadCode(const SearchItem& item, uint32_t key, uint32_t* words) {
  const uint32_t segment = key / item.segment_keys, place = key - segment * item.segment_keys;
  const ConstCodePlanes& planes = item.segments[segment];
  const CodeLayout& layout = item.layout;
  const uint8_t* tile = planes.coarse + static_cast<size_t>(place / kTileTokens) * kTileTokens * layout.coarse_bytes;
  for (int g = 0; g < layout.coarse_bytes / 4; ++g) {
    words[g * kRerankLanes] = LoadWord(tile + g * 64 + place % kTileTokens * 4);
  }
  const size_t first = static_cast<size_t>(place) * layout.fine_bytes;
  const uint8_t* record = planes.fine + first / 4 * 4;
  const int shift = static_cast<int>(first % 4) * 8, count = (layout.fine_bytes + 3) / 4;
  words += layout.coarse_bytes / 4 * kRerankLanes;
  uint32_t low = LoadWord(record);
  for (int i = 0; i < count; ++i) {
    const bool more = (i + 1) * 4 < layout.fine_bytes + static_cast<int>(first % 4);  // records end where the plane may
    const uint32_t high = more ? LoadWord(record + (i + 1) * 4) : 0;
    words[i * kRerankLanes] = static_cast<uint32_t>((low | static_cast<uint64_t>(high) << 32) >> shift);
    low = high;
  }
  words[count * kRerankLanes] = 0;
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

// cpu/ops.h, RerankBalanced, of one key.
SEINE_BODY inline float BalancedSum(const RerankShared& s, const CodeLayout& layout, const Code& code, uint32_t base) {
  const int record = layout.coarse_bytes / 4, words = (layout.fine_bytes + 3) / 4;
  int32_t sum = 0;
  uint32_t high = code.Word(record);
  for (int w = 0; w < words; ++w) {
    const uint32_t low = high;
    high = code.Word(record + w + 1);
    for (uint32_t i = s.plain_from[w]; i < s.plain_from[w + 1]; ++i) {
      const WeightedStep step = s.steps[i];
      sum += s.levels[step.levels + (Across(low, high, step.shift) & step.mask)] * step.weight;
    }
    for (uint32_t i = s.mixed_from[w]; i < s.mixed_from[w + 1]; ++i) {
      const WeightedStep step = s.steps[i];
      const CoarseStep coarse = s.coarse[i];
      const uint32_t leading = code.Word(static_cast<int>(coarse.word)) >> coarse.shift & coarse.mask;
      const uint32_t index = leading * coarse.times + (Across(low, high, step.shift) & step.mask);
      sum += s.levels[step.levels + index] * step.weight;
    }
  }
  return DecodeFactor(static_cast<uint8_t>(code.Byte(layout.coarse_bytes + layout.fine_bytes - 1)), base) *
         static_cast<float>(sum);
}

// The fine sum of subvector b of an rsq code, weighted.
SEINE_BODY inline float RsqSubvector(const RerankShared& s, const CodeLayout& layout, const Code& code, uint32_t base,
                                     int b) {
  const int subvectors = layout.head_dim / 8, record = layout.coarse_bytes;
  const uint32_t signs = code.Byte(b), low = code.Byte(record + b), middle = code.Byte(record + subvectors + b),
                 high = code.Byte(record + 2 * subvectors + b);
  int32_t sum = 0;
  for (int j = 0; j < 8; ++j) {
    const uint32_t bin = (low >> j & 1) | (middle >> j & 1) << 1 | (high >> j & 1) << 2;
    const int32_t product = s.levels[bin] * s.query8[b * 8 + j];
    sum += signs >> j & 1 ? product : -product;
  }
  return DecodeFactor(static_cast<uint8_t>(code.Byte(record + 3 * subvectors + b)), base) * static_cast<float>(sum);
}

// Lane `lane` of 16 in which subvectors are added, and the tree over them: lanes l and l + 8, then 4, 2 and 1 apart.
template <int kApart>
SEINE_BODY inline float RsqTree(const RerankShared& s, const CodeLayout& layout, const Code& code, uint32_t base,
                                int lane) {
  if constexpr (kApart < 16) {
    return RsqTree<kApart * 2>(s, layout, code, base, lane) + RsqTree<kApart * 2>(s, layout, code, base, lane + kApart);
  } else {
    float sum = 0;
    for (int b = lane; b < layout.head_dim / 8; b += 16) sum = sum + RsqSubvector(s, layout, code, base, b);
    return sum;
  }
}

// Codec::Rerank: out[i] = estimate of keys[i], times `scale`, for the block's i from `first` on, below n.
template <typename Block>
SEINE_BODY void EstimateKeys(Block& block, RerankShared& s, const SearchItem& item, const QueryPlan& q,
                             const uint32_t* keys, uint32_t first, uint32_t n, float scale, float* out) {
  const CodecTables& codec = *item.codec;
  const bool balanced = codec.kind == CodecKind::kBalanced;
  const float unit = balanced ? q.state->fine8_step * (codec.quantiser.data->levels[kMaxGaussianBits][31] / 127.0f)
                              : q.state->query8_step * (codec.rsq.levels[7] / 127.0f);
  const float coarse_step = q.state->coarse_step;
  block.Lanes([&](int lane) {
    uint32_t* words = &s.words[0][lane];
    const Code code = {words};
    for (uint32_t i = first + lane; i < Least(n, first + kRerankKeys); i += kRerankLanes) {
      const uint32_t key = keys[i], base = LoadCode(item, key, words);
      const float fine = balanced ? BalancedSum(s, item.layout, code, base) : RsqTree<1>(s, item.layout, code, base, 0);
      out[i] = (q.bases[key / kWindowTokens] * coarse_step + fine * unit) * scale;
    }
  });
}

// Candidates. Grid: (blocks of 512 candidates times group, items).
struct RerankBody {
  using Shared = RerankShared;
  template <typename Block>
  SEINE_BODY static void Run(Block& block, Shared& s, const SearchArgs& args) {
    const SearchItem& item = args.items[block.index().y];
    const int place = block.index().x % item.group;
    const uint32_t first = block.index().x / item.group * kRerankKeys, most = item.most;
    if (first >= most) return;
    const QueryPlan& q = args.queries[item.first_query + place];
    const uint32_t n = q.state->num_candidates;
    if (first >= n) return;
    BeginRerank(block, s, item, q);
    EstimateKeys(block, s, item, q, q.chosen, first, n, 1.0f, q.estimates);
  }
};

// Keys of a set of items without stored keys. Grid: (blocks of 512 keys times the set's queries, sets).
struct RescoreBody {
  using Shared = RerankShared;
  template <typename Block>
  SEINE_BODY static void Run(Block& block, Shared& s, const SearchArgs& args) {
    const SetPlan& set = args.sets[block.index().y];
    const SearchItem& item = args.items[set.item];
    if (item.stored() || item.num_keys == 0) return;
    const int place = block.index().x % set.count;
    const uint32_t first = block.index().x / set.count * kRerankKeys, n = *set.num_keys;
    if (first >= n) return;
    const QueryPlan& q = args.queries[item.first_query + set.first + place];
    BeginRerank(block, s, item, q);
    EstimateKeys(block, s, item, q, set.keys, first, n, set.scale,
                 set.logits + static_cast<size_t>(place) * set.capacity);
  }
};

}  // namespace seine::cuda

#endif  // SEINE_KERNELS_OPS_SEARCH_RERANK_CUDA_H_
