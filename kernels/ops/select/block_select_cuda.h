// What a block does together: prefix sums, ordered compaction, and the exact cut of the m largest by a radix search.
// Everything counts, so nothing depends on the order in which lanes come.
#ifndef SEINE_KERNELS_OPS_SELECT_BLOCK_SELECT_CUDA_H_
#define SEINE_KERNELS_OPS_SELECT_BLOCK_SELECT_CUDA_H_

#include <cstdint>

#include "kernels/cuda/block.h"

namespace seine::cuda {

inline constexpr int kMostLanes = 1024;

struct PrefixShared {
  uint32_t counts[kMostLanes];
  uint32_t parts[kWarp];
  uint32_t total;
};

// counts[lane] becomes the sum of those before it; returns the sum of all. The number of lanes is a multiple of 32. No
// lane waits for another's sum: each of a warp adds up the parts before its own, whose loads do not wait for each
// other.
template <typename Block>
SEINE_BODY uint32_t ExclusivePrefix(Block& block, PrefixShared& s) {
  const int each = block.num_lanes() / kWarp;
  block.Lanes([&](int lane) {
    if (lane >= kWarp) return;
    uint32_t sum = 0;
    for (int i = 0; i < each; ++i) sum += s.counts[lane * each + i];
    s.parts[lane] = sum;
  });
  block.Lanes([&](int lane) {
    if (lane >= kWarp) return;
    uint32_t sum = 0;
    for (int i = 0; i < kWarp; ++i) sum += i < lane ? s.parts[i] : 0;
    if (lane == kWarp - 1) s.total = sum + s.parts[lane];
    for (int i = 0; i < each; ++i) {
      const uint32_t count = s.counts[lane * each + i];
      s.counts[lane * each + i] = sum;
      sum += count;
    }
  });
  return block.Read(s.total);
}

// emit(i, place) for every i < n with keep(i), places ascending with i from 0. Returns how many there were.
template <typename Block, typename Keep, typename Emit>
SEINE_BODY uint32_t Compact(Block& block, PrefixShared& s, uint32_t n, Keep keep, Emit emit) {
  const uint32_t lanes = block.num_lanes(), each = (n + lanes - 1) / lanes;
  block.Lanes([&](int lane) {
    uint32_t count = 0;
    for (uint32_t i = lane * each; i < Least(n, (lane + 1) * each); ++i) count += keep(i);
    s.counts[lane] = count;
  });
  const uint32_t total = ExclusivePrefix(block, s);
  block.Lanes([&](int lane) {
    uint32_t place = s.counts[lane];
    for (uint32_t i = lane * each; i < Least(n, (lane + 1) * each); ++i) {
      if (keep(i)) emit(i, place++);
    }
  });
  return total;
}

struct RadixShared {
  uint32_t bins[2048];
  uint32_t parts[64];
  uint32_t part, before;  // the part of the bins that holds the m-th, and how many lie in those above it
  uint32_t bin, left, equal;
};

// Goes down from the top of s.bins to the bin that holds the m-th: s.bin, s.equal keys in it, s.left of them wanted. A
// lane looks at one part, then at one bin, and adds up all above it.
template <typename Block>
SEINE_BODY void FindBin(Block& block, RadixShared& s, uint32_t m) {
  constexpr int kParts = 64, kBins = 32;
  block.Lanes([&](int lane) {
    for (int part = lane; part < kParts; part += block.num_lanes()) {
      uint32_t sum = 0;
      for (int i = 0; i < kBins; ++i) sum += s.bins[part * kBins + (i + part) % kBins];  // no two lanes at one bank
      s.parts[part] = sum;
    }
  });
  block.Lanes([&](int lane) {
    for (int part = lane; part < kParts; part += block.num_lanes()) {
      uint32_t before = 0;
      for (int i = 0; i < kParts; ++i) before += i > part ? s.parts[i] : 0;
      if (before < m && m <= before + s.parts[part]) s.part = part, s.before = before;
    }
  });
  const uint32_t first = block.Read(s.part) * kBins, left = m - block.Read(s.before);
  block.Lanes([&](int lane) {
    if (lane >= kBins) return;
    uint32_t before = 0;
    for (int i = 0; i < kBins; ++i) before += i > lane ? s.bins[first + i] : 0;
    const uint32_t equal = s.bins[first + lane];
    if (before < left && left <= before + equal) s.bin = first + lane, s.left = left - before, s.equal = equal;
  });
}

// The lowest and the highest of the values get(i) of those i < n that it accepts.
struct Bounds {
  uint32_t low, high;
};
template <typename Block, typename Get>
SEINE_BODY Bounds FindBounds(Block& block, RadixShared& s, uint32_t n, Get get) {
  block.Lanes([&](int lane) {
    if (lane == 0) s.part = 0xFFFFFFFFu, s.bin = 0;
  });
  block.Lanes([&](int lane) {
    uint32_t low = 0xFFFFFFFFu, high = 0;
    for (uint32_t i = lane; i < n; i += block.num_lanes()) {
      uint32_t value;
      if (!get(i, &value)) continue;
      low = Least(low, value);
      high = Most(high, value);
    }
    block.AtomicMin(&s.part, low);
    block.AtomicMax(&s.bin, high);
  });
  const uint32_t low = block.Read(s.part);
  return {low, block.Read(s.bin)};
}

// The m-th largest of the values get(i) of those i < n that get(i, &value) accepts; at least m must be.
struct Cut32 {
  uint32_t value;  // of the m-th largest
  uint32_t ties;   // how many equal to it belong to the m largest
  uint32_t equal;  // how many are equal to it
};
// All values lie within the bounds. Bits that the two have in common are not looked at: so few passes serve values that
// lie close together, and their first pass meets many bins, not one.
template <typename Block, typename Get>
SEINE_BODY Cut32 FindCutBetween(Block& block, RadixShared& s, Bounds bounds, uint32_t n, uint32_t m, Get get) {
  constexpr int kBits = 11;
  Cut32 cut = {0, m, n};
  const uint32_t low = bounds.low;
  int left = HighestBit(bounds.high - low) + 1;  // bits that are not decided
  uint32_t known = 0;                            // mask of those that are
  while (left > 0) {
    const int bits = left < kBits ? left : kBits, shift = left - bits;
    const uint32_t last = (1u << bits) - 1;
    block.Lanes([&](int lane) {
      for (int i = lane; i < 1 << kBits; i += block.num_lanes()) s.bins[i] = 0;
    });
    block.Lanes([&](int lane) {
      for (uint32_t i = lane; i < n; i += block.num_lanes()) {
        uint32_t value;
        if (!get(i, &value) || ((value - low) & known) != cut.value) continue;
        block.AtomicAdd(&s.bins[(value - low) >> shift & last], 1u);
      }
    });
    FindBin(block, s, cut.ties);
    cut = {cut.value | block.Read(s.bin) << shift, block.Read(s.left), block.Read(s.equal)};
    known |= last << shift;
    left = shift;
  }
  cut.value += low;
  return cut;
}
template <typename Block, typename Get>
SEINE_BODY Cut32 FindCut32(Block& block, RadixShared& s, uint32_t n, uint32_t m, Get get) {
  return FindCutBetween(block, s, FindBounds(block, s, n, get), n, m, get);
}

// The m largest by (value, then lowest i): those above `value`, and those equal to it up to `last_tie`.
struct FirstCut {
  uint32_t value, last_tie;
  SEINE_BODY bool Keeps(uint32_t v, uint32_t i) const { return v > value || (v == value && i <= last_tie); }
};
// get(i, &value, &place) as above, with the place that breaks ties, below `places`. m 0: none.
template <typename Block, typename Get>
SEINE_BODY FirstCut FindFirstCut(Block& block, RadixShared& s, uint32_t places, uint32_t n, uint32_t m, Get get) {
  if (m == 0) return {0xFFFFFFFFu, 0};
  const Cut32 cut = FindCut32(block, s, n, m, [&](uint32_t i, uint32_t* value) {
    uint32_t place;
    return get(i, value, &place);
  });
  if (cut.ties == cut.equal) return {cut.value, 0xFFFFFFFFu};
  const Bounds all = {~(places - 1), 0xFFFFFFFFu};
  const Cut32 tie = FindCutBetween(block, s, all, n, cut.ties, [&](uint32_t i, uint32_t* value) {
    uint32_t score, place;
    const bool equal = get(i, &score, &place) && score == cut.value;
    *value = ~place;
    return equal;
  });
  return {cut.value, ~tie.value};
}

// How many of n ascending keys are below `key`.
SEINE_BODY inline uint32_t CountBelow(const uint32_t* keys, uint32_t n, uint32_t key) {
  uint32_t low = 0;
  while (n > 0) {
    const uint32_t half = n / 2;
    if (keys[low + half] < key) {
      low += half + 1;
      n -= half + 1;
    } else {
      n = half;
    }
  }
  return low;
}
// Whether `key` is among n ascending keys; *place: where.
SEINE_BODY inline bool FindAmong(const uint32_t* keys, uint32_t n, uint32_t key, uint32_t* place) {
  *place = CountBelow(keys, n, key);
  return *place < n && keys[*place] == key;
}
// Place of `key`, which is there.
SEINE_BODY inline uint32_t PlaceAmong(const uint32_t* keys, uint32_t n, uint32_t key) {
  return CountBelow(keys, n, key);
}

}  // namespace seine::cuda

#endif  // SEINE_KERNELS_OPS_SELECT_BLOCK_SELECT_CUDA_H_
