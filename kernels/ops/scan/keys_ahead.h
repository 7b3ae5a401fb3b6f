// What a scan asks memory for before it gets there.
#ifndef SEINE_KERNELS_OPS_SCAN_KEYS_AHEAD_H_
#define SEINE_KERNELS_OPS_SCAN_KEYS_AHEAD_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "hwy/base.h"
#include "kernels/cpu/prefetch.h"
#include "kernels/ops/scan/scan.h"

namespace seine::cpu {

// Keys scanned in one go: their windows' bases are found together.
inline constexpr int kStride = 1024;
inline constexpr int kStrideWindows = kStride / kWindowTokens;

// Coarse codes of two later windows, asked for line by line while a window is summed. In a burst the requests would
// take every buffer that the window's own lines come through.
struct LaterWindows {
  const uint8_t* near;  // into the first cache
  const uint8_t* far;   // into the second
  HWY_INLINE void Fetch(size_t offset) const {
    Prefetch(near + offset);
    PrefetchFar(far + offset);
  }
};

// Asks for the planes of keys after a scan's place: of its own, then of what is scanned next. Never beyond what is
// known to be scanned.
//
// How far ahead memory is asked decides how many lines are under way. At 1M keys and one bit a coordinate, requests in
// bursts a window: .95 ns a key with 5 KB ahead, .77 with 10, .63 with 20 (the speed of plain reads), .71 with 40 on
// one machine. Between a window's look-ups, and again a few windows ahead into the first cache, they leave them more of
// its buffers: 1.6 ns a key instead of 1.95 where plain reads take 1.3. So asked, 12 KB ahead are 10 % faster than 20
// on Zen 5 (docs/decisions/codecs/0111-a-scan-asks-twelve-kilobytes-ahead.md). Centres are read for a whole stride at
// its start.
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
        next_place_(a.next_begin),
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
  static constexpr size_t kFarBytes = 12 << 10, kNear = 3 * kWindowTokens;

  HWY_INLINE const ConstCodePlanes& PlanesOf(size_t key) const { return key < own_keys_ ? own_ : *next_; }
  HWY_INLINE size_t PlaceOf(size_t key) const { return key < own_keys_ ? key + place_ : key - own_keys_ + next_place_; }
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
    if (own_.centre == nullptr || key >= keys_ || PlaceOf(key) % layout_.centre_window != 0) return;
    const size_t row = PlaceOf(key) / layout_.centre_window, dim = layout_.head_dim;
    for (size_t b = 0; b < dim; b += 64) PrefetchFar(PlanesOf(key).centre + row * dim + b);
    PrefetchFar(PlanesOf(key).centre_scale + row);
  }

  const CodeLayout& layout_;
  const ConstCodePlanes& own_;
  const ConstCodePlanes* const next_;
  const size_t place_, next_place_, own_keys_, keys_;
  size_t far_;
  size_t sharers_ = 0, shared_ = 0,
         wait_ = 0;  // of a later pass: those that share, the next window to ask for, and when
};

}  // namespace seine::cpu

#endif  // SEINE_KERNELS_OPS_SCAN_KEYS_AHEAD_H_
