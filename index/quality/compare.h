// Answers a sample a second time, exactly: reads every key that the layer held then, a slice at a time.
#ifndef SEINE_INDEX_QUALITY_COMPARE_H_
#define SEINE_INDEX_QUALITY_COMPARE_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "index/quality/judge.h"
#include "index/quality/sample.h"

namespace seine {

enum class Compared : uint8_t {
  kDone,
  kChanged,   // the layer was truncated or evicted meanwhile: what was answered is no longer there
  kGone,      // the sequence was deleted
  kNoMemory,  // for the logits
  kStopped,   // StopRequested()
};

struct HeadQuality {
  int kv_head = 0;
  std::vector<SetQuality> sets;
  std::vector<SetWeights> weights;  // beside sets, where they are asked for
};

// Judges each head that the sample has. A slice is some thousand rows of one head, read under the layer's lock in some
// 50 us, so that no append waits longer; `rest` is called between slices, without the lock. The context and the
// backend outlive the call. Whatever is not kDone leaves nothing to rely on in `heads`.
Compared Compare(const QualitySample& sample, const std::function<void()>& rest, std::vector<HeadQuality>* heads,
                 bool with_weights = false);

}  // namespace seine

#endif  // SEINE_INDEX_QUALITY_COMPARE_H_
