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

// counts[lane] becomes the sum of those before it; returns the sum of all. The number of lanes is a multiple of 32.
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
    if (lane != 0) return;
    uint32_t sum = 0;
    for (int i = 0; i < kWarp; ++i) {
      const uint32_t part = s.parts[i];
      s.parts[i] = sum;
      sum += part;
    }
    s.total = sum;
  });
  block.Lanes([&](int lane) {
    if (lane >= kWarp) return;
    uint32_t sum = s.parts[lane];
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

// emit(bit, place) for every set bit of mask[words], bits ascending, likewise.
template <typename Block, typename Emit>
SEINE_BODY uint32_t CompactBits(Block& block, PrefixShared& s, const uint32_t* mask, uint32_t words, Emit emit) {
  const uint32_t lanes = block.num_lanes(), each = (words + lanes - 1) / lanes;
  block.Lanes([&](int lane) {
    uint32_t count = 0;
    for (uint32_t i = lane * each; i < Least(words, (lane + 1) * each); ++i) count += BitCount(mask[i]);
    s.counts[lane] = count;
  });
  const uint32_t total = ExclusivePrefix(block, s);
  block.Lanes([&](int lane) {
    uint32_t place = s.counts[lane];
    for (uint32_t i = lane * each; i < Least(words, (lane + 1) * each); ++i) {
      for (uint32_t left = mask[i]; left != 0; left &= left - 1) emit(i * 32 + LowestBit(left), place++);
    }
  });
  return total;
}

struct RadixShared {
  uint32_t bins[2048];
  uint32_t parts[64];
  uint32_t bin, left, equal;
};

// The m-th largest of the values get(i) of those i < n that get(i, &value) accepts; at least m must be.
struct Cut32 {
  uint32_t value;  // of the m-th largest
  uint32_t ties;   // how many equal to it belong to the m largest
  uint32_t equal;  // how many are equal to it
};
template <typename Block, typename Get>
SEINE_BODY Cut32 FindCut32(Block& block, RadixShared& s, uint32_t n, uint32_t m, Get get) {
  Cut32 cut = {0, m, 0};
  uint32_t known = 0;  // the bits that are decided
  for (int pass = 0; pass < 3; ++pass) {
    const int shift = pass == 0 ? 21 : pass == 1 ? 10 : 0;  // 11, 11 and 10 bits from the top
    const uint32_t last = pass < 2 ? 2047 : 1023;
    block.Lanes([&](int lane) {
      for (int i = lane; i < 2048; i += block.num_lanes()) s.bins[i] = 0;
    });
    block.Lanes([&](int lane) {
      for (uint32_t i = lane; i < n; i += block.num_lanes()) {
        uint32_t value;
        if (get(i, &value) && (value & known) == cut.value) block.AtomicAdd(&s.bins[value >> shift & last], 1u);
      }
    });
    block.Lanes([&](int lane) {
      for (int part = lane; part < 64; part += block.num_lanes()) {
        uint32_t sum = 0;
        for (int i = 0; i < 32; ++i) sum += s.bins[part * 32 + i];
        s.parts[part] = sum;
      }
    });
    block.Lanes([&](int lane) {  // from the top down to the bin that holds the m-th
      if (lane != 0) return;
      uint32_t left = cut.ties;
      int part = 63;
      for (; part > 0 && s.parts[part] < left; --part) left -= s.parts[part];
      int bin = part * 32 + 31;
      for (; bin > part * 32 && s.bins[bin] < left; --bin) left -= s.bins[bin];
      s.bin = bin;
      s.left = left;
      s.equal = s.bins[bin];
    });
    cut = {cut.value | block.Read(s.bin) << shift, block.Read(s.left), block.Read(s.equal)};
    known |= last << shift;
  }
  return cut;
}

// The m largest by (value, then lowest i): those above `value`, and those equal to it up to `last_tie`.
struct FirstCut {
  uint32_t value, last_tie;
  SEINE_BODY bool Keeps(uint32_t v, uint32_t i) const { return v > value || (v == value && i <= last_tie); }
};
// get(i, &value, &place) as above, with the place that breaks ties.
template <typename Block, typename Get>
SEINE_BODY FirstCut FindFirstCut(Block& block, RadixShared& s, uint32_t n, uint32_t m, Get get) {
  const Cut32 cut = FindCut32(block, s, n, m, [&](uint32_t i, uint32_t* value) {
    uint32_t place;
    return get(i, value, &place);
  });
  if (cut.ties == cut.equal) return {cut.value, 0xFFFFFFFFu};
  const Cut32 tie = FindCut32(block, s, n, cut.ties, [&](uint32_t i, uint32_t* value) {
    uint32_t score, place;
    const bool equal = get(i, &score, &place) && score == cut.value;
    *value = ~place;
    return equal;
  });
  return {cut.value, ~tie.value};
}

}  // namespace seine::cuda

#endif  // SEINE_KERNELS_OPS_SELECT_BLOCK_SELECT_CUDA_H_
