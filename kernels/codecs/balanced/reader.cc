// How a balanced code's fine stage reads a key (ops.h), from where the bits of its coordinates lie.
#include <algorithm>
#include <cstddef>

#include "kernels/codecs/balanced/gaussian_quantiser.h"
#include "kernels/codecs/balanced/ops.h"
#include "kernels/codecs/kinds/balanced.h"

namespace seine::cpu {
namespace {

// The index's bits `mask` that lie `above` their places in the byte, and where they reach beyond it in the next one.
void AddParts(int byte, int above, int mask, BalancedPart* right, BalancedPart* left) {
  const auto part = [](int at, int shift, int kept) {
    return BalancedPart{static_cast<uint8_t>(at), static_cast<uint8_t>(shift), kept * 0x01010101u};
  };
  if (mask == 0) return;
  if (above < 0) {
    *left = part(byte, -above, mask);
    return;
  }
  const int here = mask & 255 >> above;
  *right = part(byte, above, here);
  if (here != mask) *left = part(byte + 1, 8 - above, mask - here);
}

void SetSteps(const std::vector<uint8_t>& total, BalancedReader* r) {
  std::vector<uint16_t> plain, split, wide;  // coordinates
  for (size_t i = 0; i < total.size(); ++i) {
    if (total[i] == 0) continue;
    BalancedStep s;
    s.quarters = std::max(1, (1 << total[i]) / 16);
    AddParts(r->coarse_byte[i], r->coarse_shift[i], r->coarse_mask[i], &s.right[0], &s.left[0]);
    AddParts(r->fine_byte[i], r->fine_shift[i], r->fine_mask[i], &s.right[1], &s.left[1]);
    const bool moves_left = s.left[0].mask != 0 || s.left[1].mask != 0;
    (s.quarters > 1 ? r->wide : moves_left ? r->split : r->plain).push_back(s);
    (s.quarters > 1 ? wide : moves_left ? split : plain).push_back(static_cast<uint16_t>(i));
  }
  const auto finish = [&](const std::vector<uint16_t>& coordinates, std::vector<BalancedStep>* steps) {
    steps->resize((steps->size() + 3) / 4 * 4);
    for (const uint16_t i : coordinates) {
      r->step_coordinate.push_back(i);
      r->step_levels.push_back(static_cast<uint8_t>(1 << total[i]));
    }
    r->step_coordinate.resize(r->step_coordinate.size() + steps->size() - coordinates.size());
    r->step_levels.resize(r->step_coordinate.size());
  };
  finish(plain, &r->plain);
  finish(split, &r->split);
  finish(wide, &r->wide);
  for (int i = 2; i < 128; ++i) {
    r->signed_levels[i] = static_cast<int8_t>(r->raised[i] - 128);
    r->signed_levels[128 + i] = static_cast<int8_t>(128 - r->raised[i]);
  }
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

  SetSteps(total, &r);
  SetJoin(&r);
  return r;
}

}  // namespace seine::cpu
