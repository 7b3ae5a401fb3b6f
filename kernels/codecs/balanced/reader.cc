// What a balanced code's reader (ops.h) holds for targets without a shift for each lane.
#include <algorithm>

#include "kernels/codecs/balanced/ops.h"

namespace seine::cpu {
namespace {

BalancedPicks PicksOf(const std::vector<uint8_t>& index, int add, const std::vector<uint8_t>& wanted) {
  BalancedPicks picks;
  for (int q = 0; q < 4; ++q) {
    picks.at[q].assign(index.size(), 128);
    for (size_t i = 0; i < index.size(); ++i) {
      const int byte = index[i] + add;
      if (byte / 16 != q) continue;
      picks.at[q][i] = static_cast<uint8_t>(byte % 16);
      if (wanted[i] == 0) continue;
      picks.first = std::min(picks.first, q);
      picks.end = std::max(picks.end, q + 1);
    }
  }
  return picks;
}

void SetFactors(const std::vector<int8_t>& shift, std::vector<uint16_t> (&by)[2]) {
  for (int odd = 0; odd < 2; ++odd) {
    by[odd].resize(shift.size() / 2);
    for (size_t i = 0; i < by[odd].size(); ++i) by[odd][i] = static_cast<uint16_t>(1u << (8 - shift[2 * i + odd]));
  }
}

}  // namespace

void SetShuffles(BalancedReader* r) {
  r->coarse_at = PicksOf(r->coarse_byte, 0, r->coarse_mask);
  r->fine_at = PicksOf(r->fine_byte, 0, r->fine_mask);
  r->after_fine = PicksOf(r->fine_byte, 1, r->fine_mask);
  SetFactors(r->coarse_shift, r->coarse_by);
  SetFactors(r->fine_shift, r->fine_by);
  // Levels of the widest coordinate end at twice its flip, 2^(bits - 1) - 1.
  r->level_quarters = 2 * *std::max_element(r->flip.begin(), r->flip.end()) / 16 + 1;
}

}  // namespace seine::cpu
