// Fifth step: fine estimates of <q, k> from the coarse row and the record of a key, a lane a key. The same body scores
// the keys of a set where none are stored.
//
// Reads of a candidate: its coarse words (a sector each), its record, and the factors' base of its window. Unpacking is
// counted at 12 integer operations a coordinate.
#ifndef SEINE_KERNELS_CUDA_RERANK_H_
#define SEINE_KERNELS_CUDA_RERANK_H_

#include <cstdint>

#include "kernels/cuda/block.h"
#include "kernels/cuda/code_reader.h"
#include "kernels/cuda/search_items.h"

namespace seine::cuda {

inline constexpr int kRerankLanes = 128;
inline constexpr int kMaxFineBytes = kMaxHeadDim / 2;  // rsq; the balanced code's are fewer
inline constexpr int kCodeWords = (kMaxHeadDim / 8 + kMaxFineBytes) / 4 + 1;

struct FineCell {
  BalancedCell cell;
  int8_t weight;
};
struct RerankShared {
  uint32_t words[kCodeWords][kRerankLanes];  // a lane's coarse row, then its record
  FineCell cells[kMaxHeadDim];               // balanced
  int8_t levels[128];                        // balanced: of an index of b bits at 2^b, signed; rsq: of bin t at t
  int8_t query8[kMaxHeadDim];                // rsq
};

template <typename Block>
SEINE_BODY void BeginRerank(Block& block, RerankShared& s, const SearchItem& item, const QueryPlan& q) {
  const CodecTables& codec = *item.codec;
  const bool balanced = codec.kind == CodecKind::kBalanced;
  block.Lanes([&](int lane) {
    for (int i = lane; i < item.layout.head_dim; i += block.num_lanes()) {
      if (balanced) {
        s.cells[i] = {codec.cells.data[i], q.fine8[i]};
      } else {
        s.query8[i] = q.query8[i];
      }
    }
    if (!balanced && lane < 8) s.levels[lane] = static_cast<int8_t>(codec.rsq.levels8[lane]);
    if (!balanced || lane < 2) return;
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
  // `bits` <= 6 from bit `at` on.
  SEINE_BODY uint32_t Bits(int at, int bits) const {
    const uint64_t two = Word(at / 32) | static_cast<uint64_t>(Word(at / 32 + 1)) << 32;
    return static_cast<uint32_t>(two >> at % 32) & ((1u << bits) - 1);
  }
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

// cpu/ops.h, RerankBalanced, of one key.
SEINE_BODY inline float BalancedSum(const RerankShared& s, const CodeLayout& layout, const Code& code, uint32_t base) {
  const int record_at = layout.coarse_bytes * 8;
  int32_t sum = 0;
  for (int i = 0; i < layout.head_dim; ++i) {
    const BalancedCell cell = s.cells[i].cell;
    if (cell.total_bits == 0) continue;
    const int rest = cell.total_bits - cell.coarse_bits;
    uint32_t index = 1;  // above the index, so that the levels of each width have their own place
    if (cell.coarse_bits > 0) index = index << cell.coarse_bits | code.Bits(cell.coarse_at, cell.coarse_bits);
    if (rest > 0) index = index << rest | code.Bits(record_at + cell.fine_at, rest);
    sum += s.levels[index] * s.cells[i].weight;
  }
  return DecodeFactor(static_cast<uint8_t>(code.Byte(layout.coarse_bytes + layout.fine_bytes - 1)), base) *
         static_cast<float>(sum);
}

// cpu/ops.h, RerankRsq, of one key: subvectors in 16 lanes, added up by the tree.
SEINE_BODY inline float RsqSum(const RerankShared& s, const CodeLayout& layout, const Code& code, uint32_t base) {
  const int subvectors = layout.head_dim / 8, record = layout.coarse_bytes;
  float lanes[16];
#ifdef __CUDA_ARCH__
#pragma unroll
#endif
  for (int l = 0; l < 16; ++l) {
    lanes[l] = 0;
    for (int b = l; b < subvectors; b += 16) {
      const uint32_t signs = code.Byte(b), low = code.Byte(record + b), middle = code.Byte(record + subvectors + b),
                     high = code.Byte(record + 2 * subvectors + b);
      int32_t sum = 0;
      for (int j = 0; j < 8; ++j) {
        const uint32_t bin = (low >> j & 1) | (middle >> j & 1) << 1 | (high >> j & 1) << 2;
        const int32_t product = s.levels[bin] * s.query8[b * 8 + j];
        sum += signs >> j & 1 ? product : -product;
      }
      const float weight = DecodeFactor(static_cast<uint8_t>(code.Byte(record + 3 * subvectors + b)), base);
      lanes[l] = lanes[l] + weight * static_cast<float>(sum);
    }
  }
#ifdef __CUDA_ARCH__
#pragma unroll
#endif
  for (int h = 8; h >= 1; h /= 2) {
#ifdef __CUDA_ARCH__
#pragma unroll
#endif
    for (int l = 0; l < h; ++l) lanes[l] = lanes[l] + lanes[l + h];
  }
  return lanes[0];
}

// Codec::Rerank: estimates of keys[first + lane], all lanes at once; out[first + lane] times `scale`.
template <typename Block>
SEINE_BODY void EstimateKeys(Block& block, RerankShared& s, const SearchItem& item, const QueryPlan& q,
                             const uint32_t* keys, uint32_t first, uint32_t n, float scale, float* out) {
  const CodecTables& codec = *item.codec;
  const bool balanced = codec.kind == CodecKind::kBalanced;
  const float unit = balanced ? q.state->fine8_step * (codec.quantiser.data->levels[kMaxGaussianBits][31] / 127.0f)
                              : q.state->query8_step * (codec.rsq.levels[7] / 127.0f);
  const float coarse_step = q.state->coarse_step;
  block.Lanes([&](int lane) {
    if (first + lane >= n) return;
    const uint32_t key = keys[first + lane];
    uint32_t* words = &s.words[0][lane];
    const uint32_t base = LoadCode(item, key, words);
    const Code code = {words};
    const float fine = balanced ? BalancedSum(s, item.layout, code, base) : RsqSum(s, item.layout, code, base);
    out[first + lane] = (q.bases[key / kWindowTokens] * coarse_step + fine * unit) * scale;
  });
}

// Candidates. Grid: (blocks of 128 candidates times group, items).
struct RerankBody {
  using Shared = RerankShared;
  template <typename Block>
  SEINE_BODY static void Run(Block& block, Shared& s, const SearchArgs& args) {
    const SearchItem& item = args.items[block.index().y];
    const int place = block.index().x % item.group;
    const uint32_t first = block.index().x / item.group * kRerankLanes, n = item.wanted;
    if (first >= n) return;
    const QueryPlan& q = args.queries[item.first_query + place];
    BeginRerank(block, s, item, q);
    EstimateKeys(block, s, item, q, q.chosen, first, n, 1.0f, q.estimates);
  }
};

// Keys of a set of items without stored keys. Grid: (blocks of 128 keys times the set's queries, sets).
struct RescoreBody {
  using Shared = RerankShared;
  template <typename Block>
  SEINE_BODY static void Run(Block& block, Shared& s, const SearchArgs& args) {
    const SetPlan& set = args.sets[block.index().y];
    const SearchItem& item = args.items[set.item];
    if (item.chunks != nullptr || item.num_keys == 0) return;
    const int place = block.index().x % set.count;
    const uint32_t first = block.index().x / set.count * kRerankLanes, n = *set.num_keys;
    if (first >= n) return;
    const QueryPlan& q = args.queries[item.first_query + set.first + place];
    BeginRerank(block, s, item, q);
    EstimateKeys(block, s, item, q, set.keys, first, n, set.scale,
                 set.logits + static_cast<size_t>(place) * set.capacity);
  }
};

}  // namespace seine::cuda

#endif  // SEINE_KERNELS_CUDA_RERANK_H_
