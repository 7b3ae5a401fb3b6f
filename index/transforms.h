// The codecs of an index's heads. rsq has one for all. The balanced code has one for each (layer, KV head, p): queries
// are expected at positions [p, p + horizon], so the moments of the profile are carried there, and keys' to [0, p].
#ifndef SEINE_INDEX_TRANSFORMS_H_
#define SEINE_INDEX_TRANSFORMS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "index/config.h"
#include "kernels/backend.h"
#include "kernels/code.h"

namespace seine {

struct HeadCodec {
  std::shared_ptr<const Codec> codec;
  std::vector<float> lambda;  // [head_dim] of the balanced code; empty under rsq
};

// What one layer's keys are encoded with. Immutable.
struct LayerCodecs {
  int64_t position = -1;         // p; -1 where positions play no part: rsq, or RoPE not stated
  std::vector<HeadCodec> heads;  // [num_kv_heads]
};

// p of a layer that has `length` tokens when its first keys are encoded: the length rounded down to its two leading
// binary digits, in steps of at most an eighth of the horizon, at least 512. So sequences of like length share their
// transforms, and nearly the whole horizon lies ahead.
int64_t SealingPosition(int64_t length, int64_t horizon);

// Thread-safe. Each set of codecs is computed once, over the backend's threads, and kept: a few for each layer, of
// 2 head_dim^2 floats a head.
class Transforms {
 public:
  // `config` is valid; it and `backend` outlive this.
  Transforms(const IndexConfig* config, Backend* backend);

  const CodeLayout& layout() const { return layout_; }
  // Whether the horizon of `codecs` ends before `length`, so that another p would serve its queries better.
  bool Outgrown(const LayerCodecs& codecs, int64_t length) const;
  // For a layer of `length` tokens. INVALID_ARGUMENT where its moments cannot be balanced.
  absl::StatusOr<std::shared_ptr<const LayerCodecs>> Of(int layer, int64_t length);

 private:
  using Codecs = absl::StatusOr<std::shared_ptr<const LayerCodecs>>;
  struct Entry {
    std::once_flag once;
    Codecs codecs;
  };

  int64_t PositionOf(int64_t length) const;
  Codecs Compute(int layer, int64_t position) const;
  absl::StatusOr<HeadCodec> Balanced(int layer, int kv_head, int64_t position) const;

  const IndexConfig& config_;
  Backend* const backend_;
  std::shared_ptr<const LayerCodecs> rsq_;  // nullptr: balanced
  const CodeLayout layout_;
  std::mutex mutex_;
  std::map<std::pair<int, int64_t>, std::shared_ptr<Entry>> entries_;  // by (layer, p); guarded by mutex_
};

}  // namespace seine

#endif  // SEINE_INDEX_TRANSFORMS_H_
