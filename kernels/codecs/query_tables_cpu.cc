// Nibble tables for every Highway target: a table's 16 entries are the lanes.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/codecs/query_tables_cpu.cc"
#include "hwy/foreach_target.h"
// clang-format off
#include "hwy/highway.h"
#include "kernels/cpu/simd-inl.h"
// clang-format on
#include <cstddef>

#include "kernels/codecs/codec_util.h"
#include "kernels/codecs/query_tables.h"
#include "kernels/cpu/targets.h"
#include "kernels/math.h"

HWY_BEFORE_NAMESPACE();
namespace seine::cpu::HWY_NAMESPACE {

void MakeNibbleTablesImpl(const std::vector<NibblePart>& parts, const float* weights, int nibbles, int coarse_bytes,
                          PreparedQuery* out) {
  const DF d;
  const hn::Rebind<int32_t, DF> di;
  const hn::Rebind<uint8_t, DF> d8;
  alignas(64) float sums[kMaxNibbles * 16];
  size_t at = 0;
  for (int i = 0; i < nibbles; ++i) {
    F16 sum = Set16(0);
    for (; at < parts.size() && parts[at].nibble == i; ++at) {
      sum = Add(sum, Mul(Set16(weights[parts[at].coordinate]), Load16(parts[at].levels)));
    }
    Store16(sum, sums + i * 16);
  }
  const TableScale scale = TableScaleOf(Largest(sums, static_cast<size_t>(nibbles) * 16));
  out->coarse_step = scale.step;
  out->tables.assign(static_cast<size_t>(coarse_bytes) * 32, kTableBias);
  const VF inverse = hn::Set(d, scale.inverse), bias = hn::Set(d, static_cast<float>(kTableBias) + 0.5f);
  for (int i = 0; i < nibbles; ++i) {
    uint8_t* const table = NibbleTable(out, i);
    for (size_t v = 0; v < 16; v += kN) {
      const VF entry = hn::Add(hn::Mul(hn::Load(d, sums + i * 16 + v), inverse), bias);
      hn::StoreU(hn::DemoteTo(d8, hn::ConvertTo(di, entry)), d8, table + v);
    }
  }
}

}  // namespace seine::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace seine::cpu {

HWY_EXPORT(MakeNibbleTablesImpl);

void MakeNibbleTables(const std::vector<NibblePart>& parts, const float* weights, int nibbles, int coarse_bytes,
                      PreparedQuery* out) {
  if (ScalarForced()) return scalar::MakeNibbleTables(parts, weights, nibbles, coarse_bytes, out);
  HWY_DYNAMIC_DISPATCH(MakeNibbleTablesImpl)(parts, weights, nibbles, coarse_bytes, out);
}

}  // namespace seine::cpu
#endif  // HWY_ONCE
