// Second step: the scan of the coarse plane. A block takes 64 windows of one item and up to four queries of its group.
//
// Nibble codes. The tables of a code byte's two nibbles are added up to one of 256 words, each with one byte for each
// of the four queries, so that one look-up in shared memory serves a byte of a key for all four. The tensor cores do
// the adding: a lane's words are rows of one operand, and a second of zeros and ones parts the four lanes of a row
// again (Selector). Counted in the machine code for Hopper, a window of 64 keys of 8 bytes takes a warp about 100
// instructions to sum (16 look-ups of three to four turns of the banks, 8 products) and 100 to scale, compare and
// keep: at three a cycle, .96 keys a cycle and multiprocessor, 57% of what memory delivers of 11 bytes a key. That is a
// prediction, not a measurement.
// Bases <q, centre> of the 64 windows are one small product on the tensor cores too.
//
// Keys at or above the query's threshold go to its list: those of a block as one piece, ascending, and where the piece
// lies to the list's directory.
#ifndef SEINE_KERNELS_OPS_SCAN_SCAN_CUDA_H_
#define SEINE_KERNELS_OPS_SCAN_SCAN_CUDA_H_

#include <cmath>
#include <cstdint>

#include "kernels/cuda/block.h"
#include "kernels/cuda/load.h"
#include "kernels/ops/query/code_reader.h"
#include "kernels/ops/query/search_items.h"

namespace seine::cuda {

inline constexpr int kScanLanes = 256;
inline constexpr int kScanWarps = kScanLanes / kWarp;
inline constexpr int kWarpWindows = 8;  // one after another
inline constexpr int kScanWindows = kScanWarps * kWarpWindows;
inline constexpr int kScanQueries = 4;
inline constexpr int kPartWords = 16, kScanParts = kScanWindows * 2 / kPartWords;

// kEntries: 256 a code byte. kStageSize: found keys a query that wait for their place in its list.
template <int kEntries, int kStageSize>
struct ScanShared {
  static constexpr uint32_t kStage = kStageSize;
  uint32_t tables[kEntries];  // [bytes][256]: byte q is query q's
  Window windows[kScanWindows];
  float bases[kScanWindows][kScanQueries];
  float thresholds[kScanQueries];
  float units[kScanQueries], shared_bases[kScanQueries];
  uint32_t counts[kScanQueries];                  // found by the block
  uint32_t starts[kScanQueries];                  // their place in the query's list
  uint32_t mask[kScanQueries][kScanWindows * 2];  // of the found keys
  uint32_t parts[kScanQueries][kScanParts];       // keys in each kPartWords of the mask
  FoundKey stage[kScanQueries][kStage];
};
template <int kGroups>
using NibbleShared = ScanShared<kGroups * 4 * 256, kGroups <= 4 ? 512 : 256>;
template <int kDim>
using TierShared = ScanShared<kDim / 8 * 256, 128>;

// What one block scans.
struct ScanRange {
  const SearchItem* item;
  int quad;                  // of the group
  const QueryPlan* queries;  // the first of the quad
  int num_queries;
  uint32_t first_window;
  int num_windows;  // 64, fewer at the zone's end
};
// Grid: (blocks of 64 windows times quads of queries, items); quads are neighbours, so that codes are read from memory
// once.
template <typename Block>
SEINE_BODY bool MakeRange(Block& block, const SearchArgs& args, ScanRange* r) {
  r->item = args.items + block.index().y;
  const int quads = (r->item->group + kScanQueries - 1) / kScanQueries;
  r->quad = block.index().x % quads;
  const int64_t first = static_cast<int64_t>(block.index().x / quads) * kScanWindows;
  const int64_t windows = r->item->num_keys / kWindowTokens;
  if (first >= windows) return false;
  r->queries = args.queries + r->item->first_query + r->quad * kScanQueries;
  r->num_queries = Least(kScanQueries, r->item->group - r->quad * kScanQueries);
  r->first_window = static_cast<uint32_t>(first);
  r->num_windows = static_cast<int>(Least<int64_t>(kScanWindows, windows - first));
  return true;
}

// entry(i): word i of s.tables.
template <typename Block, typename Shared, typename Entry>
SEINE_BODY void BeginScan(Block& block, Shared& s, const ScanRange& r, Entry entry) {
  block.Lanes([&](int lane) {
    for (int i = lane; i < r.item->layout.coarse_bytes * 256; i += kScanLanes) s.tables[i] = entry(i);
    for (int query = 0; query < kScanQueries; ++query) {
      for (int i = lane; i < kScanWindows * 2; i += kScanLanes) s.mask[query][i] = 0;
    }
    if (lane < r.num_windows) s.windows[lane] = WindowOf(*r.item, r.first_window + lane);
    if (lane >= kScanQueries) return;
    s.counts[lane] = 0;
    s.thresholds[lane] = NAN;  // no score of an absent query is at or above it, whatever its base is
    if (lane >= r.num_queries) return;
    const QueryState& state = *r.queries[lane].state;
    s.thresholds[lane] = state.threshold;
    s.units[lane] = CentreUnit(state);
    s.shared_bases[lane] = state.shared_base;
  });
}

// s.bases and the queries' bases. Rows of the product: the warp's windows (8 of 16); columns: queries (4 of 8). Depths
// are the coordinates, 32 a step, a step's second half 0 past the last.
template <typename Block, typename Shared>
SEINE_BODY void MakeBases(Block& block, Shared& s, const ScanRange& r) {
  const int dim = r.item->layout.head_dim;
  const bool stored = r.item->layout.centre_window > 0;
  typename Block::template Local<MmaA> a(block);
  typename Block::template Local<MmaB> b(block);
  typename Block::template Local<MmaD> d(block);
  block.Warps([&](int lane) { d[lane] = {}; });
  for (int step = 0; stored && step < dim; step += 32) {
    block.Warps([&](int lane) {
      const int window = lane / kWarp * kWarpWindows + lane % kWarp / 4, query = lane % kWarp / 4;
      const int at = step + lane % 4 * 4;
      a[lane] = {};
      b[lane] = {};
      for (int half = 0; half < 2; ++half) {
        if (at + half * 16 >= dim) continue;
        if (window < r.num_windows) a[lane].word[2 * half] = LoadWord(s.windows[window].centre + at + half * 16);
        if (query < r.num_queries) b[lane].word[half] = LoadWord(r.queries[query].query8 + at + half * 16);
      }
    });
    block.template Mma<false>(d, a, b);
  }
  block.Lanes([&](int lane) {
    const int window = lane / kWarp * kWarpWindows + lane % kWarp / 4;
    if (window >= r.num_windows) return;
    for (int i = 0; i < 2; ++i) {
      const int query = lane % 4 * 2 + i;
      if (query >= r.num_queries) continue;
      float base = s.shared_bases[query];
      if (stored) base = static_cast<float>(d[lane].sum[i]) * (s.windows[window].centre_scale * s.units[query]);
      s.bases[window][query] = base;
      r.queries[query].bases[r.first_window + window] = base;
    }
  });
}

template <typename Block, typename Shared>
SEINE_BODY void MarkFound(Block& block, Shared& s, const ScanRange& r, int query, uint32_t index) {
  const uint32_t key = index - r.first_window * kWindowTokens;
  block.AtomicOr(&s.mask[query][key / 32], 1u << key % 32);
}

// The place-th find of the block: to its stage, or, where that is full, to the mask alone.
template <typename Block, typename Shared>
SEINE_BODY void Keep(Block& block, Shared& s, const ScanRange& r, int query, uint32_t place, FoundKey found) {
  if (place < Shared::kStage) {
    s.stage[query][place] = found;
  } else {
    MarkFound(block, s, r, query, found.index);
  }
}

// How many of the block's finds come before key `key` of the block.
template <typename Shared>
SEINE_BODY uint32_t FindsBefore(const Shared& s, int query, uint32_t key) {
  const uint32_t word = key / 32, part = word / kPartWords;
  uint32_t before = static_cast<uint32_t>(BitCount(s.mask[query][word] & ((1u << key % 32) - 1)));
  for (uint32_t i = 0; i < part; ++i) before += s.parts[query][i];
  for (uint32_t i = part * kPartWords; i < word; ++i) before += static_cast<uint32_t>(BitCount(s.mask[query][i]));
  return before;
}

SEINE_BODY inline void PutFound(const ScanRange& r, const QueryPlan& q, uint32_t at, FoundKey found) {
  if (at < static_cast<uint32_t>(r.item->capacity)) q.found[at] = found;
}

// Finds of a query of which the stage held too few: each key's that the mask names, its score made once more.
template <bool kCollision, typename Shared>
SEINE_BODY void PutAgain(Shared& s, const ScanRange& r, int query, int lane) {
  const QueryPlan& q = r.queries[query];
  for (int word = lane; word < r.num_windows * 2; word += kScanLanes) {
    uint32_t at = s.starts[query] + FindsBefore(s, query, word * 32);
    for (uint32_t left = s.mask[query][word]; left != 0; left &= left - 1, ++at) {
      const int key = word * 32 + LowestBit(left), in_window = key % kWindowTokens;
      const Window& w = s.windows[word / 2];
      const int32_t sum = CoarseSum(*r.item, kCollision, q.place, w, in_window);
      const float score = CoarseScore(kCollision, sum, s.bases[word / 2][query], w, in_window);
      PutFound(r, q, at, {r.first_window * kWindowTokens + key, score});
    }
  }
}

// The block's finds to the queries' lists, and where they lie to the directories.
template <bool kCollision, typename Block, typename Shared>
SEINE_BODY void EndScan(Block& block, Shared& s, const ScanRange& r) {
  block.Lanes([&](int lane) {
    for (int query = 0; query < r.num_queries; ++query) {
      const uint32_t staged = Least(s.counts[query], Shared::kStage);
      for (uint32_t i = lane; i < staged; i += kScanLanes) MarkFound(block, s, r, query, s.stage[query][i].index);
    }
    if (lane >= r.num_queries) return;
    const uint32_t count = s.counts[lane];
    s.starts[lane] = count > 0 ? block.AtomicAdd(&r.queries[lane].state->found, count) : 0;
    r.queries[lane].pieces[r.first_window / kScanWindows] = {s.starts[lane], count};
  });
  block.Lanes([&](int lane) {
    const int query = lane / kScanParts, part = lane % kScanParts;
    if (query >= kScanQueries) return;
    uint32_t count = 0;
    for (int i = 0; i < kPartWords; ++i) count += BitCount(s.mask[query][part * kPartWords + i]);
    s.parts[query][part] = count;
  });
  block.Lanes([&](int lane) {
    for (int query = 0; query < r.num_queries; ++query) {
      if (s.counts[query] > Shared::kStage) {
        PutAgain<kCollision>(s, r, query, lane);
        continue;
      }
      for (uint32_t i = lane; i < s.counts[query]; i += kScanLanes) {
        const FoundKey found = s.stage[query][i];
        const uint32_t before = FindsBefore(s, query, found.index - r.first_window * kWindowTokens);
        PutFound(r, r.queries[query], s.starts[query] + before, found);
      }
    }
  });
}

// Operand of zeros and ones: column n takes from the lanes j = 2 * kHalf + n / 4 of each row the byte n % 4.
template <int kHalf>
SEINE_BODY inline MmaB Selector(int lane) {
  const int column = lane % kWarp / 4, j = lane % 4;
  const uint32_t one = j == 2 * kHalf + column / 4 ? 1u << column % 4 * 8 : 0;
  return {{one, one}};
}

// What a lane fetches of a window before it is scored: the code words of keys 2l and 2l + 1, kGroups each, and the
// factors of the four keys whose scores it will have, two neighbours twice.
template <int kGroups>
struct Fetched {
  uint32_t word[kGroups][2];
  uint32_t factors[2];
};
// The lane of a warp whose keys lane l scores: that of the first two; the others are two lanes further on.
SEINE_BODY inline int OwnerOf(int l) { return l / 4 * 4 + l % 4 / 2; }

// One operation on a device, and an index that the look-up scales by itself.
SEINE_BODY inline uint32_t ByteOf(uint32_t word, int byte) {
#ifdef __CUDA_ARCH__
  return __byte_perm(word, 0, 0x4440 + byte);
#else
  return word >> (byte * 8) & 255;
#endif
}

template <int kGroups>
SEINE_BODY inline Fetched<kGroups> Fetch(const Window& w, int l) {
  Fetched<kGroups> f;
  const uint8_t* at = w.coarse + l / 8 * (kTileTokens * 4 * kGroups) + l % 8 * 8;
#ifdef __CUDA_ARCH__
#pragma unroll
#endif
  for (int g = 0; g < kGroups; ++g) {
#ifdef __CUDA_ARCH__
    const uint2 two = Load<uint2>(at + g * 64);
    f.word[g][0] = two.x;
    f.word[g][1] = two.y;
#else
    memcpy(f.word[g], at + g * 64, 8);
#endif
  }
  f.factors[0] = Load<uint16_t>(w.factor + OwnerOf(l) * 2);
  f.factors[1] = Load<uint16_t>(w.factor + OwnerOf(l) * 2 + 4);
  return f;
}

// Grid as above; kGroups = coarse_bytes / 4.
template <int kGroups>
struct NibbleScanBody {
  using Shared = NibbleShared<kGroups>;
  // Takes every entry's bias back, and makes the sum the mantissa of a float of kMagic: 2^23 + 2^22.
  static constexpr int32_t kStart = 0x4B400000 - 2 * kTableBias * kGroups * 4;
  static constexpr float kMagic = 12582912.0f;

  template <typename Block>
  SEINE_BODY static void Run(Block& block, Shared& s, const SearchArgs& args) {
    ScanRange r;
    if (!MakeRange(block, args, &r) || r.item->layout.coarse_bytes != kGroups * 4) return;
    const uint32_t* tables = r.item->nibble_tables + r.quad * kGroups * 128;
    // Bytes of queries that are not there may carry, but only into one another: they are the highest.
    BeginScan(block, s, r,
              [&](int i) { return tables[i / 256 * 32 + i % 16] + tables[i / 256 * 32 + 16 + i / 16 % 16]; });
    MakeBases(block, s, r);
    typename Block::template Local<Fetched<kGroups>> next(block), now(block);
    typename Block::template Local<MmaB> selectors[2] = {typename Block::template Local<MmaB>(block),
                                                         typename Block::template Local<MmaB>(block)};
    const auto window_of = [](int lane, int turn) { return lane / kWarp * kWarpWindows + turn; };
    block.Warps([&](int lane) {
      selectors[0][lane] = Selector<0>(lane);
      selectors[1][lane] = Selector<1>(lane);
      const int first = window_of(lane, 0);
      if (first < r.num_windows) next[lane] = Fetch<kGroups>(s.windows[first], lane % kWarp);
    });
    for (int turn = 0; turn < kWarpWindows; ++turn) {
      block.Warps([&](int lane) {
        now[lane] = next[lane];
        const int after = window_of(lane, turn + 1);
        if (turn + 1 < kWarpWindows && after < r.num_windows) {
          next[lane] = Fetch<kGroups>(s.windows[after], lane % kWarp);
        }
      });
      ScanWindow(block, s, r, turn, now, selectors);
    }
    block.Lanes([](int) {});  // every warp's finds are there
    EndScan<false>(block, s, r);
  }

  // One window a warp: lane l looks keys 2l and 2l + 1 up; afterwards it has the scores of queries 2 (l % 2) and
  // 2 (l % 2) + 1 for the keys of its owner and of the lane two further on.
  template <typename Block, typename FetchedLanes, typename SelectorLanes>
  SEINE_BODY static void ScanWindow(Block& block, Shared& s, const ScanRange& r, int turn, FetchedLanes& now,
                                    SelectorLanes& selectors) {
    typename Block::template Local<MmaA> a(block);
    typename Block::template Local<MmaD> sums0(block), sums1(block);
    block.Warps([&](int lane) { sums0[lane] = sums1[lane] = {{kStart, kStart, kStart, kStart}}; });
#ifdef __CUDA_ARCH__
#pragma unroll
#endif
    for (int byte = 0; byte < kGroups * 4; byte += 2) {
      block.Warps([&](int lane) {
        for (int i = 0; i < 4; ++i) {  // bytes `byte` of both keys, then `byte` + 1
          const uint32_t code = ByteOf(now[lane].word[byte / 4][i % 2], (byte + i / 2) % 4);
          a[lane].word[i] = s.tables[(byte + i / 2) * 256 + code];
        }
      });
      block.template Mma<true>(sums0, a, selectors[0]);
      block.template Mma<true>(sums1, a, selectors[1]);
    }
    block.Warps([&](int lane) {
      const int window = lane / kWarp * kWarpWindows + turn;
      if (window >= r.num_windows) return;
      const uint32_t base = s.windows[window].factor_base;
      float factors[4];  // of the owner's two keys, then the other's
      for (int k = 0; k < 4; ++k) {
        factors[k] = DecodeFactor(static_cast<uint8_t>(now[lane].factors[k / 2] >> (k % 2 * 8)), base);
      }
      for (int i = 0; i < 2; ++i) {
        const int query = lane % 2 * 2 + i;
        float scores[4];
        for (int k = 0; k < 4; ++k) {
          const MmaD& sums = k < 2 ? sums0[lane] : sums1[lane];
          const float sum = BitsFloat(static_cast<uint32_t>(sums.sum[k % 2 * 2 + i])) - kMagic;  // exact
          scores[k] = s.bases[window][query] + factors[k] * sum;
        }
        KeepHits(block, s, r, query, (r.first_window + window) * kWindowTokens + OwnerOf(lane % kWarp) * 2, scores);
      }
    });
  }

  // Scores of keys first, first + 1, first + 4 and first + 5 of the zone.
  template <typename Block>
  SEINE_BODY static void KeepHits(Block& block, Shared& s, const ScanRange& r, int query, uint32_t first,
                                  const float (&scores)[4]) {
    const float threshold = s.thresholds[query];
    const bool hits[4] = {scores[0] >= threshold, scores[1] >= threshold, scores[2] >= threshold,
                          scores[3] >= threshold};
    const uint32_t count = uint32_t{hits[0]} + hits[1] + hits[2] + hits[3];
    if (count == 0) return;
    uint32_t place = block.AtomicAdd(&s.counts[query], count);
    if (place + count <= Shared::kStage) {
      for (uint32_t k = 0; k < 4; ++k) {
        if (hits[k]) s.stage[query][place++] = {first + k / 2 * 4 + k % 2, scores[k]};
      }
      return;
    }
    for (uint32_t k = 0; k < 4; ++k) {
      if (hits[k]) Keep(block, s, r, query, place++, {first + k / 2 * 4 + k % 2, scores[k]});
    }
  }
};

// The paper's tiers: 256-entry tables of four queries' weights, of which 32 add up to 6 * 32 at most, so that bytes do
// not carry. Rows of up to kDim coordinates.
template <int kDim>
struct TierScanBody {
  using Shared = TierShared<kDim>;
  static constexpr int kGroups = 8;  // of four bytes, that are added up within a byte
  template <typename Block>
  SEINE_BODY static void Run(Block& block, Shared& s, const SearchArgs& args) {
    ScanRange r;
    if (!MakeRange(block, args, &r)) return;
    const int bytes = r.item->layout.coarse_bytes;
    const uint32_t* tables = r.item->tier_tables + r.quad * bytes * 256;
    BeginScan(block, s, r, [&](int i) { return tables[i]; });
    MakeBases(block, s, r);
    block.Lanes([&](int lane) {
      const uint32_t keys = r.num_windows * kWindowTokens;
      for (uint32_t key = lane; key < keys; key += kScanLanes) {
        const Window& w = s.windows[key / kWindowTokens];
        uint32_t wide[2] = {0, 0};  // of queries 0 and 2, then 1 and 3
        for (int first = 0; first < bytes / 4; first += kGroups) {
          uint32_t sums = 0;
          for (int g = first; g < Least(first + kGroups, bytes / 4); ++g) {
            const uint32_t word = CoarseWord(w, bytes, key % kWindowTokens, g);
            for (int b = 0; b < 4; ++b) sums += s.tables[(g * 4 + b) * 256 + (word >> (b * 8) & 255)];
          }
          wide[0] += sums & 0x00FF00FFu;
          wide[1] += sums >> 8 & 0x00FF00FFu;
        }
        for (int query = 0; query < r.num_queries; ++query) {
          const float score = static_cast<float>((query % 2 == 0 ? wide[0] : wide[1]) >> (query / 2 * 16) & 0xFFFFu);
          if (!(score >= s.thresholds[query])) continue;
          Keep(block, s, r, query, block.AtomicAdd(&s.counts[query], 1u),
               {r.first_window * kWindowTokens + key, score});
        }
      }
    });
    EndScan<true>(block, s, r);
  }
};

}  // namespace seine::cuda

#endif  // SEINE_KERNELS_OPS_SCAN_SCAN_CUDA_H_
