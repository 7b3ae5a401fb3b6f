// How a balanced code's fine stage reads a key (ops.h), from where the bits of its coordinates lie.
#include <algorithm>
#include <cstddef>

#include "kernels/codecs/balanced/gaussian_quantiser.h"
#include "kernels/codecs/balanced/ops.h"
#include "kernels/codecs/kinds/balanced.h"

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

void SetShuffles(BalancedReader* r) {
  r->coarse_at = PicksOf(r->coarse_byte, 0, r->coarse_mask);
  r->fine_at = PicksOf(r->fine_byte, 0, r->fine_mask);
  r->after_fine = PicksOf(r->fine_byte, 1, r->fine_mask);
  SetFactors(r->coarse_shift, r->coarse_by);
  SetFactors(r->fine_shift, r->fine_by);
  // Levels of the widest coordinate end at twice its flip, 2^(bits - 1) - 1.
  r->level_quarters = 2 * *std::max_element(r->flip.begin(), r->flip.end()) / 16 + 1;
}

// A load that crosses into a line pays for it even where its mask leaves the line out, so no load of a record reaches
// beyond it: sixteen bytes at a time, the last sixteen over those before them.
void SetJoin(BalancedReader* r) {
  const int n = r->record_bytes;
  for (int part = 0; part < 4; ++part) r->record_at[part] = std::max(std::min(16 * part, n - 16), 0);
  std::fill_n(r->join, 64, uint8_t{0});
  for (int b = 0; b < r->coarse_bytes; ++b) r->join[b] = static_cast<uint8_t>(b);
  for (int b = 0; b < n; ++b) {
    r->join[r->coarse_bytes + b] = static_cast<uint8_t>(64 + b / 16 * 16 + (b - r->record_at[b / 16]));
  }
}

}  // namespace

BalancedReader MakeReader(const CodeLayout& layout, const std::vector<uint8_t>& total,
                          const std::vector<BitPlace>& coarse, const std::vector<BitPlace>& fine) {
  BalancedReader r;
  const int dim = layout.head_dim;
  r.groups = (dim + 63) / 64;
  r.coarse_bytes = layout.coarse_bytes;
  r.record_bytes = layout.fine_bytes - 1;
  const size_t lanes = static_cast<size_t>(r.groups) * 64;
  for (auto* table : {&r.coarse_byte, &r.coarse_mask, &r.fine_mask, &r.flip}) {
    table->assign(lanes, 0);
  }
  for (auto* table : {&r.coarse_shift, &r.fine_shift}) table->assign(lanes, 0);
  r.fine_byte.assign(lanes, static_cast<uint8_t>(layout.coarse_bytes));
  for (int i = 0; i < dim; ++i) {
    if (total[i] > 0) r.flip[i] = static_cast<uint8_t>((1 << (total[i] - 1)) - 1);
  }
  const auto bits = [](int n) { return (1 << n) - 1; };
  for (const BitPlace& p : coarse) {
    r.coarse_byte[p.coordinate] = static_cast<uint8_t>(p.at / 8);
    r.coarse_shift[p.coordinate] = static_cast<int8_t>(p.at % 8 - p.from);
    r.coarse_mask[p.coordinate] = static_cast<uint8_t>(bits(p.bits) << p.from);
  }
  for (const BitPlace& p : fine) {
    // A lane without a field begins where the one before it ends, so that eight lanes' bytes are near one another.
    std::fill(r.fine_byte.begin() + p.coordinate, r.fine_byte.end(),
              static_cast<uint8_t>(layout.coarse_bytes + (p.at + p.bits - 1) / 8));
    r.fine_byte[p.coordinate] = static_cast<uint8_t>(layout.coarse_bytes + p.at / 8);
    r.fine_shift[p.coordinate] = static_cast<int8_t>(p.at % 8);
    r.fine_mask[p.coordinate] = static_cast<uint8_t>(bits(p.bits));
  }
  for (int b = 1; b <= kMaxGaussianBits; ++b) {
    const int half = 1 << (b - 1);
    for (int bin = 0; bin < half; ++bin) {
      const int level = AllGaussianTables().levels8[half - 1 + bin];
      r.raised[2 * half + half + bin] = static_cast<uint8_t>(128 + level);
      r.raised[2 * half + half - 1 - bin] = static_cast<uint8_t>(128 - level);
    }
  }
  std::copy_n(AllGaussianTables().levels8, 64, r.levels);

  SetShuffles(&r);
  SetJoin(&r);
  return r;
}

}  // namespace seine::cpu
