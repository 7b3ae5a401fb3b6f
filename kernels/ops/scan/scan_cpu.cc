// Stage I: the scan of the coarse plane, for every Highway target, a stride of keys at a time.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/ops/scan/scan_cpu.cc"
#include "hwy/foreach_target.h"
// clang-format off
#include "hwy/highway.h"
#include "kernels/ops/scan/window_sums-inl.h"
#include "kernels/cpu/simd-inl.h"
// clang-format on
#include <algorithm>
#include <bit>
#include <cstring>

#include "kernels/cpu/prefetch.h"
#include "kernels/cpu/scalar.h"
#include "kernels/cpu/targets.h"
#include "kernels/math.h"
#include "kernels/ops/rows/rows.h"
#include "kernels/ops/scan/scan.h"

HWY_BEFORE_NAMESPACE();
#if HWY_TARGET == HWY_AVX3_DL && HWY_COMPILER_GCC_ACTUAL
#pragma GCC target("avx512vnni")  // Highway tests for it at run time but leaves it out of the target's options
#endif
namespace seine::cpu::HWY_NAMESPACE {

// Keys scanned in one go: their scores stay in the first cache, and their windows' bases are found together.
inline constexpr int kStride = 1024;
inline constexpr int kStrideWindows = kStride / kWindowTokens;

// Asks for the planes of keys after a scan's place: of its own, then of what is scanned next. Never beyond what is
// known to be scanned.
//
// How far ahead memory is asked decides how many lines are under way. At 1M keys and one bit a coordinate, requests in
// bursts a window: .95 ns a key with 5 KB ahead, .77 with 10, .63 with 20 (the speed of plain reads), .71 with 40 on
// one machine. Between a window's look-ups, and again a few windows ahead into the first cache, they leave them more of
// its buffers: 1.6 ns a key instead of 1.95 where plain reads take 1.3. Centres are read for a whole stride at its
// start.
//
// Several queries that scan the same keys find them in the cache after the first; so the first asks for its own keys
// alone, the others share out what is next, and memory does not rest meanwhile.
class KeysAhead {
 public:
  KeysAhead(const ScanArgs& a, int place)
      : layout_(*a.layout),
        own_(a.planes),
        next_(a.next),
        place_(place),
        own_keys_(a.end - place),
        keys_(own_keys_ + (a.passes > 1 && a.pass == 0 ? 0 : a.next_keys)) {
    const size_t read_bytes = static_cast<size_t>(kWindowTokens) * (layout_.coarse_bytes + 1) +
                              (own_.centre != nullptr ? layout_.head_dim : 0);
    far_ = std::min<size_t>(kFarBytes / read_bytes, 32) * kWindowTokens;
    if (a.pass == 0) return;
    sharers_ = a.passes - 1;
    const size_t windows = (a.end - a.begin) / kWindowTokens, done = (place - a.begin) / kWindowTokens;
    const size_t turn = (a.pass - 1) * windows + done;
    shared_ = own_keys_ + (turn + sharers_ - 1) / sharers_ * kWindowTokens;
    wait_ = (sharers_ - turn % sharers_) % sharers_;
  }

  // For the window `key` after the place, whose coarse codes begin at `coarse`; each in its turn.
  HWY_INLINE LaterWindows At(size_t key, const uint8_t* coarse) {
    LaterWindows later = {coarse, coarse};  // what is at hand costs nothing to ask for
    if (key + kNear < keys_) {
      later.near = Coarse(key + kNear);
      Prefetch(Factor(key + kNear));
    }
    if (sharers_ > 0) {
      if (wait_ > 0) {
        --wait_;
        return later;
      }
      wait_ = sharers_ - 1;
      FetchFar(shared_, &later.far);
      FetchCentre(shared_);
      shared_ += kWindowTokens;
    } else {
      FetchFar(key + far_, &later.far);
      FetchCentre(key + kStride);
    }
    return later;
  }

 private:
  static constexpr size_t kFarBytes = 20 << 10, kNear = 3 * kWindowTokens;

  HWY_INLINE const ConstCodePlanes& PlanesOf(size_t key) const { return key < own_keys_ ? own_ : *next_; }
  HWY_INLINE size_t PlaceOf(size_t key) const { return key < own_keys_ ? key + place_ : key - own_keys_; }
  HWY_INLINE const uint8_t* Coarse(size_t key) const {
    return PlanesOf(key).coarse + PlaceOf(key) * layout_.coarse_bytes;
  }
  HWY_INLINE const uint8_t* Factor(size_t key) const { return PlanesOf(key).factor + PlaceOf(key); }

  HWY_INLINE void FetchFar(size_t key, const uint8_t** coarse) const {
    if (key >= keys_) return;
    *coarse = Coarse(key);
    PrefetchFar(Factor(key));
    PrefetchFar(PlanesOf(key).factor_base + PlaceOf(key) / kWindowTokens);
  }
  HWY_INLINE void FetchCentre(size_t key) const {
    if (own_.centre == nullptr || key >= keys_ || PlaceOf(key) % layout_.centre_tokens != 0) return;
    const size_t row = PlaceOf(key) / layout_.centre_tokens, dim = layout_.head_dim;
    for (size_t b = 0; b < dim; b += 64) PrefetchFar(PlanesOf(key).centre + row * dim + b);
    PrefetchFar(PlanesOf(key).centre_scale + row);
  }

  const CodeLayout& layout_;
  const ConstCodePlanes& own_;
  const ConstCodePlanes* const next_;
  const size_t place_, own_keys_, keys_;
  size_t far_;
  size_t sharers_ = 0, shared_ = 0,
         wait_ = 0;  // of a later pass: those that share, the next window to ask for, and when
};

// <q, centre> / coarse_step of windows [begin, end), at most kStride keys.
HWY_INLINE void WindowBases(const ScanArgs& a, int begin, int end, float* bases) {
  const int windows = (end - begin) / kWindowTokens, tokens = a.layout->centre_tokens;
  if (a.planes.centre == nullptr) {
    for (int w = 0; w < windows; ++w) bases[w] = a.shared_base;
    return;
  }
  const float unit = a.query->coarse_step > 0 ? a.query->query8_step / a.query->coarse_step : 0.0f;
  const int first = begin / tokens, rows = (end - 1) / tokens - first + 1;
  const float* scales = a.planes.centre_scale + first;
  int32_t dots[kStrideWindows];
  CentreDots(a.planes.centre + static_cast<size_t>(first) * a.layout->head_dim, a.query->query8.data(),
             a.layout->head_dim, rows, dots);
  if (tokens == kWindowTokens) {
    for (int w = 0; w < windows; ++w) bases[w] = static_cast<float>(dots[w]) * (scales[w] * unit);
    return;
  }
  for (int w = 0; w < windows; ++w) {
    const int row = (begin + w * kWindowTokens) / tokens - first;
    bases[w] = static_cast<float>(dots[row]) * (scales[row] * unit);
  }
}

// Windows [begin, end) of a.planes one after another, at most kStride keys: their bases, then use(key, t, scores of
// keys begin + key + t and the 15 after it) for each tile of the window at begin + key.
template <typename Use>
HWY_INLINE void ForEachTile(const ScanArgs& a, int begin, int end, float* bases, Use use) {
  const CodeLayout& layout = *a.layout;
  const int coarse_bytes = layout.coarse_bytes;
  const size_t window_bytes = static_cast<size_t>(kWindowTokens) * coarse_bytes;
  KeysAhead ahead(a, begin);
  const uint8_t* coarse = a.planes.coarse + begin / kWindowTokens * window_bytes;
  const uint8_t *factor = a.planes.factor + begin, *tables = a.query->tables.data();
  const uint32_t* factor_bases = a.planes.factor_base + begin / kWindowTokens;
  WindowBases(a, begin, end, bases);
  const DF d;
  const hn::Rebind<int32_t, DF> di;
  const hn::Rebind<uint8_t, DF> d8;
  const size_t keys = end - begin;
  for (size_t key = 0; key < keys; key += kWindowTokens, coarse += window_bytes) {
    const LaterWindows later = ahead.At(key, coarse);
    alignas(64) int32_t sums[kWindowTokens];
    if (a.tiers) {
      SumTiers(coarse, coarse_bytes, a.tiers, later, sums);
      for (size_t t = 0; t < kWindowTokens; t += 16) {
        use(key, t, Map([&](size_t i) HWY_ATTR { return hn::ConvertTo(d, hn::Load(di, sums + t + i * kN)); }));
      }
      continue;
    }
    SumNibbles(coarse, coarse_bytes, tables, later, sums);
    const auto factor_base = hn::Set(di, static_cast<int32_t>(factor_bases[key / kWindowTokens]));
    const VF window_base = hn::Set(d, bases[key / kWindowTokens]);
    for (size_t t = 0; t < kWindowTokens; t += 16) {
      use(key, t, Map([&](size_t i) HWY_ATTR {
            const VF sum = hn::ConvertTo(d, hn::Load(di, sums + t + i * kN));
            const auto code = hn::PromoteTo(di, hn::LoadU(d8, factor + key + t + i * kN));
            const VF f = hn::BitCast(d, hn::Add(hn::ShiftLeft<kFactorShift>(code), factor_base));
            return hn::Add(window_base, hn::Mul(f, sum));
          }));
    }
  }
}

void ScanScoresImpl(const ScanArgs& a, float* scores, float* bases) {
  for (int begin = a.begin, end; begin < a.end; begin = end) {
    end = a.end - begin < kStride ? a.end : begin + kStride;
    ForEachTile(a, begin, end, bases + (begin - a.begin) / kWindowTokens,
                [&](size_t key, size_t t, const F16& s) HWY_ATTR { Store16(s, scores + (begin - a.begin) + key + t); });
  }
}

inline constexpr size_t kWriteAhead =
    64;  // candidates whose place is fetched before they are written: lists may be cold

// Coarse bytes of the listed keys, from their tiles to rows. kWords: 32-bit words a row if known at compile time,
// else 1.
template <int kWords>
HWY_INLINE void CopyRows(const uint8_t* coarse, int words, const uint16_t* keys, size_t count,
                         uint8_t* HWY_RESTRICT rows) {
  const size_t row_words = kWords > 1 ? kWords : words;
  for (size_t c = 0; c < count; ++c, rows += row_words * 4) {
    const uint32_t key = keys[c];
    const uint8_t* from = coarse + key / kTileTokens * (kTileTokens * 4 * row_words) + key % kTileTokens * 4;
    PrefetchWrite(rows + kWriteAhead * row_words * 4);
    for (size_t w = 0; w < row_words; ++w) memcpy(rows + w * 4, from + w * 64, 4);
  }
}

// A stride at a time: all scores are written, and the keys of those above listed without a branch; then the listed
// keys' scores, bases and coarse bytes are copied.
void ScanAboveImpl(const ScanArgs& a, float threshold, uint32_t first_index, Candidates* out) {
  const int row_bytes = a.layout->coarse_bytes;
  const VF limit = hn::Set(DF(), threshold);
  alignas(64) float scores[kStride], bases[kStrideWindows];
  alignas(64) uint16_t keys[kStride + kWindowTokens];
  for (int begin = a.begin, end; begin < a.end; begin = end) {
    end = a.end - begin < kStride ? a.end : begin + kStride;
    uint64_t above = 0;
    size_t count = 0;
    ForEachTile(a, begin, end, bases, [&](size_t key, size_t t, const F16& s) HWY_ATTR {
      Store16(s, scores + key + t);
      MF masks[kParts];
      for (size_t i = 0; i < kParts; ++i) masks[i] = hn::Ge(s.v[i], limit);
      above |= static_cast<uint64_t>(Bits16(masks)) << t;
      if (t != kWindowTokens - kTileTokens) return;
      count += AppendKeys(above, static_cast<int>(key), keys + count);
      above = 0;
    });
    const size_t first = out->size;
    const uint8_t* coarse = a.planes.coarse + static_cast<size_t>(begin) * row_bytes;
    uint8_t* rows = out->rows.data() + first * row_bytes;
    if (row_bytes == 16) {
      CopyRows<4>(coarse, 4, keys, count, rows);
    } else if (row_bytes == 8) {
      CopyRows<2>(coarse, 2, keys, count, rows);
    } else {
      CopyRows<1>(coarse, row_bytes / 4, keys, count, rows);
    }
    uint32_t* index = out->index.data() + first;
    float *coarse_score = out->coarse.data() + first, *base = out->base.data() + first;
    for (size_t c = 0; c < count; c += 16) {
      PrefetchWrite(index + c + kWriteAhead);
      PrefetchWrite(coarse_score + c + kWriteAhead);
      PrefetchWrite(base + c + kWriteAhead);
    }
    const uint32_t start = first_index + static_cast<uint32_t>(begin);
    for (size_t c = 0; c < count; ++c) {
      const uint32_t key = keys[c];
      index[c] = start + key;
      coarse_score[c] = scores[key];
      base[c] = bases[key / kWindowTokens];
    }
    out->size = first + count;
  }
}

}  // namespace seine::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace seine::cpu {
namespace {

// The plain twin of both scans: the same windows, one key at a time.
template <typename Use>
void ScalarScan(const ScanArgs& a, Use use) {
  const CodeLayout& layout = *a.layout;
  const float unit = a.query->coarse_step > 0 ? a.query->query8_step / a.query->coarse_step : 0.0f;
  for (int key = a.begin; key < a.end; key += kWindowTokens) {
    const uint8_t* coarse = a.planes.coarse + static_cast<size_t>(key) * layout.coarse_bytes;
    float base = a.shared_base;
    if (a.planes.centre != nullptr) {
      const int row = key / layout.centre_tokens;
      const int32_t dot = scalar::Dot8(a.planes.centre + static_cast<size_t>(row) * layout.head_dim,
                                       a.query->query8.data(), layout.head_dim);
      base = static_cast<float>(dot) * (a.planes.centre_scale[row] * unit);
    }
    int32_t sums[kWindowTokens];
    if (a.tiers) {
      scalar::SumTiers(coarse, layout.coarse_bytes, a.tiers, sums);
    } else {
      scalar::SumNibbles(coarse, layout.coarse_bytes, a.query->tables.data(), sums);
    }
    for (int i = 0; i < kWindowTokens; ++i) {
      const float sum = static_cast<float>(sums[i]);
      const float f = DecodeFactor(a.planes.factor[key + i], a.planes.factor_base[key / kWindowTokens]);
      use(key + i, base, a.tiers ? sum : base + f * sum);
    }
  }
}

}  // namespace

HWY_EXPORT(ScanScoresImpl);
HWY_EXPORT(ScanAboveImpl);

void ScanScores(const ScanArgs& a, float* scores, float* bases) {
  if (!ScalarForced()) return HWY_DYNAMIC_DISPATCH(ScanScoresImpl)(a, scores, bases);
  ScalarScan(a, [&](int key, float base, float score) {
    scores[key - a.begin] = score;
    bases[(key - a.begin) / kWindowTokens] = base;
  });
}

void ScanAbove(const ScanArgs& a, float threshold, uint32_t first_index, Candidates* out) {
  if (!ScalarForced()) return HWY_DYNAMIC_DISPATCH(ScanAboveImpl)(a, threshold, first_index, out);
  ScalarScan(a, [&](int key, float base, float score) {
    if (!(score >= threshold)) return;
    out->index[out->size] = first_index + static_cast<uint32_t>(key);
    out->coarse[out->size] = score;
    out->base[out->size] = base;
    CopyCoarseRow(a.planes.coarse, a.layout->coarse_bytes, key, out->rows.data() + out->size * a.layout->coarse_bytes);
    ++out->size;
  });
}

void CountCodes(const ConstCodePlanes& planes, const CodeLayout& layout, int begin, int end, int sign,
                uint32_t* counts) {
  uint8_t row[kMaxHeadDim / 8];
  for (int key = begin; key < end; ++key) {
    CopyCoarseRow(planes.coarse, layout.coarse_bytes, key, row);
    for (int b = 0; b < layout.head_dim / 8; ++b) counts[b * 256 + row[b]] += static_cast<uint32_t>(sign);
  }
}

}  // namespace seine::cpu
#endif  // HWY_ONCE
