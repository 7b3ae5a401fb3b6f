// Hashes of rows for every Highway target.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/ops/hash/hash_rows_cpu.cc"
#include "hwy/foreach_target.h"
// clang-format off
#include "hwy/highway.h"
// clang-format on
#include "kernels/cpu/targets.h"
#include "kernels/ops/hash/hash_rows.h"
#include "kernels/ops/hash/hash_words.h"

HWY_BEFORE_NAMESPACE();
namespace seine::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using DW = hn::CappedTag<uint64_t, kHashLanes>;
using VW = hn::Vec<DW>;

HWY_INLINE VW AddWords(VW sum, VW words, VW keys) {
  const hn::Repartition<uint32_t, DW> d32;
  const VW keyed = hn::Xor(words, keys);
  const VW product = hn::MulEven(hn::BitCast(d32, keyed), hn::BitCast(d32, hn::ShiftRight<32>(keyed)));
  const VW turned = hn::BitCast(DW(), hn::Shuffle2301(hn::BitCast(d32, words)));
  return hn::Add(sum, hn::Add(product, turned));
}

// kWords: of a row, if known at compile time, else 0.
template <size_t kWords>
HWY_INLINE void HashEach(const ConstRows& rows, const int32_t* places, int count, size_t num_bytes, uint32_t* out) {
  const DW d;
  constexpr size_t kN = HWY_MAX_BYTES / 8 < kHashLanes ? HWY_MAX_BYTES / 8 : kHashLanes;
  const size_t words = kWords > 0 ? kWords : num_bytes / 8;
  for (int i = 0; i < count; ++i) {
    const auto* row = static_cast<const uint8_t*>(rows.row(places == nullptr ? i : places[i]));
    VW sum = hn::Zero(d);
    size_t w = 0;
    for (; w + kN <= words; w += kN) {
      const auto* at = reinterpret_cast<const uint64_t*>(row + w * 8);
      sum = AddWords(sum, hn::LoadU(d, at), hn::LoadU(d, &kHashKeys[w]));
    }
    uint64_t lanes[kN], all = 0;  // Highway adds lanes up as signed numbers, which overflow
    hn::StoreU(sum, d, lanes);
    for (const uint64_t lane : lanes) all += lane;
    for (; w < words; ++w) all += HashOfWord(row + w * 8, w);
    if (kWords == 0 && num_bytes % 8 != 0) all += HashOfWord(row + num_bytes - 8, words);
    out[i] = MixHash(all);
  }
}

void HashRowsImpl(const ConstRows& rows, const int32_t* places, int count, int dim, uint32_t* out) {
  const size_t bytes = BytesOf(rows.dtype, dim);
  if (bytes == 128) return HashEach<16>(rows, places, count, bytes, out);
  if (bytes == 256) return HashEach<32>(rows, places, count, bytes, out);
  HashEach<0>(rows, places, count, bytes, out);
}

}  // namespace seine::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace seine::cpu {

HWY_EXPORT(HashRowsImpl);

void HashRows(const ConstRows& rows, const int32_t* places, int count, int dim, uint32_t* out) {
  if (ScalarForced()) return scalar::HashRows(rows, places, count, dim, out);
  HWY_DYNAMIC_DISPATCH(HashRowsImpl)(rows, places, count, dim, out);
}

}  // namespace seine::cpu
#endif  // HWY_ONCE
