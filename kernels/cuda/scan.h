// Third step: the scan of the coarse plane. A block takes 64 windows of one item and up to four queries of its group.
//
// Nibble codes. A shared-memory word holds one table entry of each of the four queries, so a lane that looks one nibble
// of its key up has all four; 16 words lie in 16 banks, so no two lanes of a warp conflict. The tensor cores do the
// adding: a lane's words are the operand's rows 4r + .., and a second operand of zeros and ones parts the four lanes of
// a row again (Selector). Per 32 keys of 8 code bytes and four queries: 16 look-ups, 24 integer operations, 8 products.
// Counted for Hopper (128 bytes of shared memory and 64 integer operations a cycle and multiprocessor), that is what
// memory delivers of 11 bytes a key.
// Bases <q, centre> of the 64 windows are one small product on the tensor cores too.
//
// Keys at or above the query's threshold go to its list, in any order; one bit a key says which they are.
#ifndef SEINE_KERNELS_CUDA_SCAN_H_
#define SEINE_KERNELS_CUDA_SCAN_H_

#include <cstdint>

#include "kernels/cuda/block.h"
#include "kernels/cuda/code_reader.h"
#include "kernels/cuda/search_items.h"

namespace seine::cuda {

inline constexpr int kScanLanes = 256;
inline constexpr int kScanWarps = kScanLanes / kWarp;
inline constexpr int kWarpWindows = 8;  // one after another
inline constexpr int kScanWindows = kScanWarps * kWarpWindows;
inline constexpr int kScanQueries = 4;

template <int kTableWords, int kStage>
struct ScanShared {
  uint32_t tables[kTableWords];
  Window windows[kScanWindows];
  float bases[kScanWindows][kScanQueries];
  float thresholds[kScanQueries];
  float units[kScanQueries], shared_bases[kScanQueries];
  uint32_t counts[kScanQueries];  // found by the block
  uint32_t starts[kScanQueries];  // their place in the query's list
  uint32_t mask[kScanQueries][kScanWindows * 2];
  FoundKey stage[kScanQueries][kStage];
};
template <int kGroups>
using NibbleShared = ScanShared<kGroups * 128, 512>;
using TierShared = ScanShared<kMaxHeadDim / 8 * 256, 128>;

// What one block scans.
struct ScanRange {
  const SearchItem* item;
  const QueryPlan* queries;  // the first of the four
  int num_queries;
  uint32_t first_window;
  int num_windows;  // 64, fewer at the zone's end
};
// Grid: (blocks of 64 windows times quads of queries, items); quads are neighbours, so that codes are read from memory
// once.
template <typename Block>
SEINE_BODY bool MakeRange(Block& block, const SearchArgs& args, ScanRange* r) {
  r->item = args.items + block.index().y;
  const int quads = (r->item->group + kScanQueries - 1) / kScanQueries, quad = block.index().x % quads;
  const int64_t first = static_cast<int64_t>(block.index().x / quads) * kScanWindows;
  const int64_t windows = r->item->num_keys / kWindowTokens;
  if (first >= windows) return false;
  r->queries = args.queries + r->item->first_query + quad * kScanQueries;
  r->num_queries = Least(kScanQueries, r->item->group - quad * kScanQueries);
  r->first_window = static_cast<uint32_t>(first);
  r->num_windows = static_cast<int>(Least<int64_t>(kScanWindows, windows - first));
  return true;
}

template <typename Block, typename Shared>
SEINE_BODY void BeginScan(Block& block, Shared& s, const ScanRange& r, const uint32_t* tables, int table_words) {
  block.Lanes([&](int lane) {
    for (int i = lane; i < table_words; i += kScanLanes) s.tables[i] = tables[i];
    for (int query = 0; query < kScanQueries; ++query) {
      for (int i = lane; i < kScanWindows * 2; i += kScanLanes) s.mask[query][i] = 0;
    }
    if (lane < r.num_windows) s.windows[lane] = WindowOf(*r.item, r.first_window + lane);
    if (lane >= kScanQueries) return;
    s.counts[lane] = 0;
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
  const bool stored = r.item->layout.centre_tokens > 0;
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
    block.Mma(d, a, b);
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

// A key at or above the threshold: to the block's stage, or straight to the list where that is full.
template <int kStage, typename Block, typename Shared>
SEINE_BODY void Found(Block& block, Shared& s, const ScanRange& r, int query, uint32_t key, float score) {
  block.AtomicOr(&s.mask[query][key / 32], 1u << key % 32);
  const FoundKey found = {r.first_window * kWindowTokens + key, score};
  const uint32_t place = block.AtomicAdd(&s.counts[query], 1u);
  if (place < kStage) {
    s.stage[query][place] = found;
    return;
  }
  const QueryPlan& q = r.queries[query];
  const uint32_t at = block.AtomicAdd(&q.state->found, 1u);
  if (at < static_cast<uint32_t>(r.item->capacity)) q.found[at] = found;
}

template <int kStage, typename Block, typename Shared>
SEINE_BODY void EndScan(Block& block, Shared& s, const ScanRange& r) {
  block.Lanes([&](int lane) {
    if (lane >= r.num_queries) return;
    const uint32_t staged = Least<uint32_t>(s.counts[lane], kStage);
    s.starts[lane] = staged > 0 ? block.AtomicAdd(&r.queries[lane].state->found, staged) : 0;
  });
  block.Lanes([&](int lane) {
    for (int query = 0; query < r.num_queries; ++query) {
      const QueryPlan& q = r.queries[query];
      const uint32_t staged = Least<uint32_t>(s.counts[query], kStage), start = s.starts[query];
      for (uint32_t i = lane; i < staged; i += kScanLanes) {
        if (start + i < static_cast<uint32_t>(r.item->capacity)) q.found[start + i] = s.stage[query][i];
      }
      for (int i = lane; i < r.num_windows * 2; i += kScanLanes) q.mask[r.first_window * 2 + i] = s.mask[query][i];
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

// Code words of two neighbouring keys: kGroups words each.
template <int kGroups>
struct KeyPair {
  uint32_t word[kGroups][2];
};
template <int kGroups>
SEINE_BODY inline KeyPair<kGroups> LoadKeyPair(const Window& w, int pair) {
  KeyPair<kGroups> keys;
  const uint8_t* at = w.coarse + pair / 8 * (kTileTokens * 4 * kGroups) + pair % 8 * 8;
#ifdef __CUDA_ARCH__
#pragma unroll
#endif
  for (int g = 0; g < kGroups; ++g) {
#ifdef __CUDA_ARCH__
    const uint2 two = *reinterpret_cast<const uint2*>(at + g * 64);
    keys.word[g][0] = two.x;
    keys.word[g][1] = two.y;
#else
    memcpy(keys.word[g], at + g * 64, 8);
#endif
  }
  return keys;
}

// Table entries of byte `byte` (its low nibble, its high nibble) of a word. low and high: the word's nibbles times
// four, a byte each.
SEINE_BODY inline uint32_t Entry(const uint32_t* tables, uint32_t nibbles, int byte) {
  const uint32_t offset = nibbles >> (byte * 8) & 0x3C;
  return *reinterpret_cast<const uint32_t*>(reinterpret_cast<const uint8_t*>(tables) + offset);
}

// Grid as above; kGroups = coarse_bytes / 4.
template <int kGroups>
struct NibbleScanBody {
  using Shared = NibbleShared<kGroups>;
  static constexpr int32_t kStart = -2 * kTableBias * kGroups * 4;  // takes every entry's bias back
  template <typename Block>
  SEINE_BODY static void Run(Block& block, Shared& s, const SearchArgs& args) {
    ScanRange r;
    if (!MakeRange(block, args, &r) || r.item->layout.coarse_bytes != kGroups * 4) return;
    const int quad = (r.queries - args.queries - r.item->first_query) / kScanQueries;
    BeginScan(block, s, r, r.item->nibble_tables + quad * kGroups * 128, kGroups * 128);
    MakeBases(block, s, r);
    typename Block::template Local<KeyPair<kGroups>> next(block), keys(block);
    const auto window_of = [](int lane, int turn) { return lane / kWarp * kWarpWindows + turn; };
    block.Warps([&](int lane) {
      if (window_of(lane, 0) < r.num_windows)
        next[lane] = LoadKeyPair<kGroups>(s.windows[window_of(lane, 0)], lane % kWarp);
    });
    for (int turn = 0; turn < kWarpWindows; ++turn) {
      block.Warps([&](int lane) {
        keys[lane] = next[lane];
        if (turn + 1 < kWarpWindows && window_of(lane, turn + 1) < r.num_windows)
          next[lane] = LoadKeyPair<kGroups>(s.windows[window_of(lane, turn + 1)], lane % kWarp);
      });
      ScanWindow(block, s, r, turn, keys);
    }
    block.Lanes([](int) {});  // the warps' lists are complete
    EndScan<512>(block, s, r);
  }

  // One window a warp: lane l holds keys 2l and 2l + 1; afterwards lane 4r + j has the scores of queries 2 (j % 2) and
  // 2 (j % 2) + 1 for the keys of lanes 4r + j / 2 and 4r + 2 + j / 2.
  template <typename Block, typename Keys>
  SEINE_BODY static void ScanWindow(Block& block, Shared& s, const ScanRange& r, int turn, Keys& keys) {
    typename Block::template Local<MmaA> a(block);
    typename Block::template Local<MmaB> select0(block), select1(block);
    typename Block::template Local<MmaD> sums0(block), sums1(block);
    block.Warps([&](int lane) {
      sums0[lane] = sums1[lane] = {{kStart, kStart, kStart, kStart}};
      select0[lane] = Selector<0>(lane);
      select1[lane] = Selector<1>(lane);
    });
#ifdef __CUDA_ARCH__
#pragma unroll
#endif
    for (int byte = 0; byte < kGroups * 4; ++byte) {
      block.Warps([&](int lane) {
        const uint32_t* tables = s.tables + byte * 32;
        for (int key = 0; key < 2; ++key) {
          const uint32_t word = keys[lane].word[byte / 4][key];
          a[lane].word[key] = Entry(tables, word << 2 & 0x3C3C3C3C, byte % 4);
          a[lane].word[2 + key] = Entry(tables + 16, word >> 2 & 0x3C3C3C3C, byte % 4);
        }
      });
      block.Mma(sums0, a, select0);
      block.Mma(sums1, a, select1);
    }
    block.Warps([&](int lane) {
      const int window = lane / kWarp * kWarpWindows + turn;
      if (window >= r.num_windows) return;
      const Window& w = s.windows[window];
      for (int half = 0; half < 2; ++half) {
        const int owner = lane % kWarp / 4 * 4 + 2 * half + lane % 4 / 2;
        for (int i = 0; i < 4; ++i) {
          const int query = lane % 2 * 2 + i % 2, key = owner * 2 + i / 2;
          if (query >= r.num_queries) continue;
          const int32_t sum = half == 0 ? sums0[lane].sum[i] : sums1[lane].sum[i];
          const float score = CoarseScore(false, sum, s.bases[window][query], w, key);
          if (score >= s.thresholds[query]) Found<512>(block, s, r, query, window * kWindowTokens + key, score);
        }
      }
    });
  }
};

// The paper's tiers: 256-entry tables of four queries' weights, at most 6 * 32 in all, so that bytes never carry.
struct TierScanBody {
  using Shared = TierShared;
  template <typename Block>
  SEINE_BODY static void Run(Block& block, Shared& s, const SearchArgs& args) {
    ScanRange r;
    if (!MakeRange(block, args, &r)) return;
    const int quad = (r.queries - args.queries - r.item->first_query) / kScanQueries;
    const int bytes = r.item->layout.coarse_bytes;
    BeginScan(block, s, r, r.item->tier_tables + quad * bytes * 256, bytes * 256);
    MakeBases(block, s, r);
    block.Lanes([&](int lane) {
      for (int key = lane; key < r.num_windows * kWindowTokens; key += kScanLanes) {
        const Window& w = s.windows[key / kWindowTokens];
        uint32_t sums = 0;
        for (int g = 0; g < bytes / 4; ++g) {
          const uint32_t word = CoarseWord(w, bytes, key % kWindowTokens, g);
          for (int b = 0; b < 4; ++b) sums += s.tables[(g * 4 + b) * 256 + (word >> (b * 8) & 255)];
        }
        for (int query = 0; query < r.num_queries; ++query) {
          const float score = static_cast<float>(sums >> (query * 8) & 255);
          if (score >= s.thresholds[query]) Found<128>(block, s, r, query, key, score);
        }
      }
    });
    EndScan<128>(block, s, r);
  }
};

}  // namespace seine::cuda

#endif  // SEINE_KERNELS_CUDA_SCAN_H_
